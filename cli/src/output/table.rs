//! Tables as kubectl prints them: no borders, one line for each row, cut at the width of the terminal.

use comfy_table::{ContentArrangement, Row, Table};

use super::{Output, Style, escape};

/// A table for people.
pub struct Rows {
    headers: Vec<&'static str>,
    rows: Vec<(Style, Vec<String>)>,
}

impl Rows {
    /// An empty table with these columns.
    pub fn new(headers: &[&'static str]) -> Self {
        Self { headers: headers.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. Foreign text is escaped here.
    pub fn push(&mut self, style: Style, cells: Vec<String>) {
        self.rows.push((style, cells.iter().map(|cell| escape::line(cell)).collect()));
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints the table.
    pub fn print(&self, output: &mut Output) {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let mut header = Row::from(self.headers.iter().copied());
        header.max_height(1);
        table.set_header(header);
        for (_, cells) in &self.rows {
            let mut row = Row::from(cells.iter().map(String::as_str));
            row.max_height(1);
            table.add_row(row);
        }
        match output.width {
            Some(width) => {
                table.set_content_arrangement(ContentArrangement::Dynamic);
                table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let styles = std::iter::once(Style::Bold).chain(self.rows.iter().map(|(style, _)| *style));
        for (line, style) in table.lines().zip(styles) {
            output.print_styled(style, line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::output::Format;

    #[test]
    fn a_row_has_one_line_within_the_width_whatever_is_in_it() {
        let mut rows = Rows::new(&["NAME", "A TITLE OF MANY WORDS"]);
        rows.push(Style::Plain, vec!["pay".into(), "one\ntwo\u{1b}[31m ".repeat(20)]);
        rows.push(Style::Plain, vec!["渡し船".into(), "short".into()]);
        rows.push(
            Style::Plain,
            vec!["a-name-that-leaves-little-room-for-the-last-column".into(), "a b c".into()],
        );
        let mut output = Output::kept(Format::Text, 60, Timestamp::UNIX_EPOCH);
        rows.print(&mut output);
        let lines: Vec<_> = output.text().lines().collect();
        assert_eq!(lines.len(), 4, "{}", output.text());
        assert!(lines.iter().all(|line| textwrap::core::display_width(line) <= 60), "{}", output.text());
        assert!(lines[1].starts_with("pay") && lines[1].contains("one\\ntwo\\u{1b}[31m"), "{}", lines[1]);
    }
}
