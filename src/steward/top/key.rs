//! The keys of `top`, independent of the terminal library.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A key that `top` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Character(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Next,
    Previous,
    /// Ctrl-C or Ctrl-D: ends the program in every mode.
    Interrupt,
    /// Ctrl-L: redraws the whole screen.
    Redraw,
}

impl Key {
    /// Converts a key event of the terminal; `None` for unused keys and for the release of a key.
    pub(crate) fn from_event(event: &KeyEvent) -> Option<Key> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return match event.code {
                KeyCode::Char('c' | 'd') => Some(Key::Interrupt),
                KeyCode::Char('l') => Some(Key::Redraw),
                KeyCode::Char('h') => Some(Key::Backspace),
                _ => None,
            };
        }
        Some(match event.code {
            KeyCode::Char(c) => Key::Character(c),
            KeyCode::Enter => Key::Enter,
            KeyCode::Esc => Key::Escape,
            KeyCode::Backspace | KeyCode::Delete => Key::Backspace,
            KeyCode::Up => Key::Up,
            KeyCode::Down => Key::Down,
            KeyCode::PageUp => Key::PageUp,
            KeyCode::PageDown => Key::PageDown,
            KeyCode::Home => Key::Home,
            KeyCode::End => Key::End,
            KeyCode::Tab | KeyCode::Right => Key::Next,
            KeyCode::BackTab | KeyCode::Left => Key::Previous,
            _ => return None,
        })
    }
}
