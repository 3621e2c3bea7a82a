//! Styles with or without colours. Colour never carries information alone: each coloured word means the same in black
//! and white.

use ratatui::style::{Color, Modifier, Style};

/// How the screen looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Colours may be used.
    pub(crate) colour: bool,
}

// === impl Look ===

impl Look {
    /// The line of headings.
    pub(crate) fn heading(self) -> Style {
        self.pick(Style::new().fg(Color::Black).bg(Color::Cyan), Style::new().add_modifier(Modifier::REVERSED))
    }

    /// The row that is selected.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The top row of a group of rows.
    pub(crate) fn head(self) -> Style {
        self.pick(Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD), Style::new().add_modifier(Modifier::BOLD))
    }

    /// A warning, such as simulated GPUs or an agent that does not answer.
    pub(crate) fn warning(self) -> Style {
        self.pick(
            Style::new().fg(Color::Black).bg(Color::Yellow).add_modifier(Modifier::BOLD),
            Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
        )
    }

    /// Text that matters less, such as the list of keys.
    pub(crate) fn quiet(self) -> Style {
        self.pick(Style::new().fg(Color::DarkGray), Style::new())
    }

    /// A GPU's health.
    pub(crate) fn health(self, word: &str) -> Style {
        match word {
            "healthy" => self.pick(Style::new().fg(Color::Green), Style::new()),
            "unhealthy" => self.pick(Style::new().fg(Color::Red), Style::new()).add_modifier(Modifier::BOLD),
            "degraded" => self.pick(Style::new().fg(Color::Yellow), Style::new()).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        }
    }

    fn pick(self, colour: Style, plain: Style) -> Style {
        if self.colour { colour } else { plain }
    }
}
