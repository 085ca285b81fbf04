//! Lines of a report that fit a terminal.

/// The number of characters that fit every terminal.
pub const WIDTH: usize = 80;

/// Indent of the lines of a text after the first one.
const INDENT: &str = "  ";

/// Breaks a text at blanks into lines of at most `width` characters, of which those after the first
/// are indented. A word that is longer, such as a path, stays whole, so that it can be copied.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if used + 1 + length <= width => {
                line.push(' ');
                line.push_str(word);
                used += 1 + length;
            }
            last => {
                let indent = if last.is_some() { INDENT } else { "" };
                lines.push(format!("{indent}{word}"));
                used = indent.len() + length;
            }
        }
    }
    lines
}

/// The text of a report: its sentences in lines that fit, and the rows of its table, which are
/// indented, as they are.
pub fn fit(report: &[String]) -> String {
    let lines = report.iter().flat_map(|line| {
        if line.starts_with(' ') {
            vec![line.clone()]
        } else {
            wrap(line, WIDTH)
        }
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_and_words_stay_whole() {
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("a bc d ef", 4), ["a bc", "  d", "  ef"]);
        assert_eq!(
            wrap("a bcdefgh i j k", 5),
            ["a", "  bcdefgh", "  i j", "  k"]
        );
    }

    #[test]
    fn rows_are_left_alone() {
        let row = format!("  {}", "a ".repeat(WIDTH));
        let sentence = "b ".repeat(39) + "bbb";
        let expected = format!("{row}\n{}\n  bbb\n", "b ".repeat(39).trim_end());
        assert_eq!(fit(&[row, sentence]), expected);
    }
}
