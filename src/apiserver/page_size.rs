//! How many objects a list asks for in one page. Users decide how large their objects are, so a page of a fixed number
//! of objects may be too large to be read. Then it is read again with half as many, down to one object.
//!
//! An API server before Kubernetes 1.33 encodes a whole page before it sends the first byte: 250 objects of 1.4 MiB of `<`
//! take it 30 s and 5 GiB of memory. So a list that got no answer is read again in smaller pages, too.

use crate::error::ApiError;
use std::time::Duration;

/// Maximum number of objects in a page of a list that was too large in one piece.
const PAGE: u32 = 500;
/// If a page has fewer bytes than this, the next page may have twice as many objects.
const SMALL: usize = crate::client::MAX_PAGE / 4;

/// A page that fails later than this may have been too much for the server.
const SLOW_PAGE: Duration = Duration::from_secs(5);
/// A page without an answer is not made smaller than this: the server encodes 60 objects of the largest size in some 7 s. A list of
/// 300,000 pods then takes 5,000 pages, within a minute.
const SMALLEST: u32 = 60;
/// After this many lists in one piece without an answer in a row, the list is read in pages. Pages come from etcd, and an
/// API server that has just started is slow for all agents of a cluster at once, so one such list is not enough.
const SLOW_LISTS: u32 = 3;

/// The number of objects in the next page. It is kept from one list to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSize {
    /// The size of a page, or `None` for a list in one piece, while all lists are answered.
    usual: Option<u32>,
    /// Maximum size of a page: less than usual after a list that got no answer.
    most: u32,
    /// `None` for a list in one piece.
    limit: Option<u32>,
    /// Lists in one piece without an answer in a row.
    slow_lists: u32,
}

impl PageSize {
    /// The size of the first page; `None` for a list in one piece.
    pub(crate) fn new(page: Option<u32>) -> PageSize {
        PageSize { usual: page, most: page.unwrap_or(PAGE), limit: page, slow_lists: 0 }
    }

    /// A list begins.
    pub(crate) fn begin(&mut self) {
        let whole = self.usual.is_none() && self.most == PAGE && self.slow_lists < SLOW_LISTS;
        self.limit = if whole { None } else { Some(self.most) };
    }

    /// A list was read to its end.
    pub(crate) fn list_was_read(&mut self) {
        self.slow_lists = 0;
        self.most = self.most.saturating_mul(2).min(self.usual.unwrap_or(PAGE));
    }

    /// A page, and so the list, has failed after this time. A server that is away fails sooner.
    pub(crate) fn page_failed(&mut self, why: &ApiError, took: Duration) {
        match self.limit {
            Some(limit) if took >= SLOW_PAGE && why.may_be_too_much() => self.most = (limit / 2).max(SMALLEST),
            None if why.slow() => self.slow_lists += 1,
            Some(_) | None => {}
        }
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
    use crate::error::{ApiCall, ApiFailure, ApiVerb};
    use crate::resource::ApiResource;

    /// How long a call without an answer takes.
    const LONG: Duration = Duration::from_secs(30);

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

    fn failed(failure: ApiFailure) -> ApiError {
        ApiError { call: ApiCall::new(ApiVerb::List, ApiResource::Pods, "pods"), server: "s".into(), failure }
    }

    #[test]
    fn after_a_page_without_an_answer_pages_stay_smaller_until_lists_are_read() {
        let (slow, broken) = (failed(ApiFailure::Slow(LONG)), failed(ApiFailure::Broken("reset".into())));
        let mut size = PageSize::new(Some(500));
        let away = Duration::from_millis(1);
        for (why, took, expected) in [
            (&slow, LONG, 250),
            (&broken, away, 250),
            (&broken, LONG, 125),
            (&failed(ApiFailure::TooLarge(1)), LONG, 125),
        ] {
            size.page_failed(why, took);
            size.begin();
            assert_eq!(size.limit(), Some(expected), "{why}");
        }
        (0..3).for_each(|_| size.was_read(1));
        assert_eq!(size.limit(), Some(125), "small pages before the large one do not count");
        for expected in [250, 500, 500] {
            size.list_was_read();
            size.begin();
            assert_eq!(size.limit(), Some(expected));
        }
        for _ in 0..20 {
            size.page_failed(&slow, LONG);
            size.begin();
        }
        assert_eq!(size.limit(), Some(SMALLEST));
    }

    #[test]
    fn a_list_in_one_piece_is_read_in_pages_after_several_without_an_answer() {
        let slow = failed(ApiFailure::Slow(LONG));
        let mut size = PageSize::new(None);
        for expected in [None, None, Some(500), Some(250)] {
            size.page_failed(&slow, LONG);
            size.begin();
            assert_eq!(size.limit(), expected);
        }
        size.list_was_read();
        size.begin();
        assert_eq!(size.limit(), None, "the server was fast enough for a page of the usual size");
        (0..9).for_each(|_| size.page_failed(&failed(ApiFailure::Broken("refused".into())), Duration::ZERO));
        size.begin();
        assert_eq!(size.limit(), None, "a server that is away is not slow");
    }

    #[test]
    fn a_list_in_one_piece_is_not_halved_but_read_in_pages() {
        let mut size = PageSize::new(None);
        size.was_read(1);
        assert!(!size.halve());
        assert_eq!((size.limit(), size.in_pages().limit()), (None, Some(500)));
    }
}
