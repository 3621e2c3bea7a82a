//! An SVG as PNG. The font is in the program, so that the picture is the same on every machine.

use super::PlotError;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// DejaVu Sans with the characters of [`has_glyph`]; `font/LICENSE` is its licence.
const FONT: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");
const FAMILY: &str = "DejaVu Sans";

/// The PNG of an SVG of [`super::svg`].
///
/// # Errors
/// If the libraries that read the SVG and write the PNG fail.
pub fn png(svg: &str) -> Result<Vec<u8>, PlotError> {
    let text: String = svg.chars().map(|c| if has_glyph(c) { c } else { '?' }).collect();
    let mut options = Options { font_family: FAMILY.to_owned(), ..Options::default() };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family(FAMILY);
    let tree = Tree::from_str(&text, &options).map_err(|error| PlotError(error.to_string()))?;
    let size = tree.size().to_int_size();
    let pixels = Pixmap::new(size.width(), size.height());
    let mut pixels = pixels.ok_or_else(|| PlotError("it has no size".to_owned()))?;
    resvg::render(&tree, Transform::default(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| PlotError(error.to_string()))
}

/// Whether the font has the character. Characters of markup are ASCII.
fn has_glyph(c: char) -> bool {
    c.is_ascii() || "\u{a0}°±²³µ·ÄÖÜßäéöü×–…≤≥\u{fffd}".contains(c)
}
