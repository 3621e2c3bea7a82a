//! How many objects a list asks for in one page. Users decide how large their objects are, so a page of a fixed number
//! of objects may be too large to be read. Then it is read again with half as many, down to one object.

/// Maximum number of objects in a page of a list that was too large in one piece.
const PAGE: u32 = 500;
/// If a page has fewer bytes than this, the next page may have twice as many objects.
const SMALL: usize = crate::client::MAX_PAGE / 4;

/// The number of objects in the next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSize {
    most: u32,
    /// `None` for a list in one piece.
    limit: Option<u32>,
}

impl PageSize {
    /// The size of the first page; `None` for a list in one piece.
    pub(crate) fn new(page: Option<u32>) -> PageSize {
        PageSize { most: page.unwrap_or(PAGE), limit: page }
    }

    /// The limit of objects in a page; `None` for a list in one piece.
    pub(crate) fn limit(self) -> Option<u32> {
        self.limit
    }

    /// The size of a page in place of a list in one piece.
    pub(crate) fn in_pages(self) -> PageSize {
        PageSize { limit: Some(self.most), ..self }
    }

    /// Halves the page. Returns whether it is smaller now: a list in one piece and a page of one object stay.
    pub(crate) fn halve(&mut self) -> bool {
        let half = self.limit.map(|limit| limit / 2).filter(|half| *half > 0);
        self.limit = half.or(self.limit);
        half.is_some()
    }

    /// A page of this many bytes was read.
    pub(crate) fn was_read(&mut self, bytes: usize) {
        if bytes < SMALL {
            self.limit = self.limit.map(|limit| limit.saturating_mul(2).min(self.most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_halved_down_to_one_object_and_grows_again_with_small_objects() {
        let mut size = PageSize::new(Some(500));
        let halved: Vec<_> = std::iter::from_fn(|| size.halve().then(|| size.limit().unwrap())).collect();
        assert_eq!(halved, [250, 125, 62, 31, 15, 7, 3, 1]);
        size.was_read(SMALL);
        assert_eq!(size.limit(), Some(1), "the next object may be as large");
        (0..20).for_each(|_| size.was_read(SMALL - 1));
        assert_eq!(size.limit(), Some(500));
    }

    #[test]
    fn a_list_in_one_piece_is_not_halved_but_read_in_pages() {
        let mut size = PageSize::new(None);
        size.was_read(1);
        assert!(!size.halve());
        assert_eq!((size.limit(), size.in_pages().limit()), (None, Some(500)));
    }
}
