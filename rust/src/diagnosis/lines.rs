//! Lines of a report that fit a terminal.

/// The number of characters that fit every terminal.
pub const WIDTH: usize = 80;

/// How far the lines of a sentence after the first are indented.
const INDENT: usize = 2;

/// Breaks a text at blanks into lines of at most `width` characters. A word that is longer, such
/// as a path, stays whole, so that it can be copied.
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
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

/// Breaks a sentence that does not fit, and indents what follows its first line.
pub fn wrap_sentence(text: &str) -> Vec<String> {
    if text.chars().count() <= WIDTH {
        return vec![text.to_owned()];
    }
    let mut lines = wrap(text, WIDTH - INDENT);
    for line in &mut lines[1..] {
        line.insert_str(0, &" ".repeat(INDENT));
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
            wrap_sentence(line)
        }
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole() {
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("a bc d", 4), ["a bc", "d"]);
        assert_eq!(
            wrap("at a/very/long/path in f", 6),
            ["at", "a/very/long/path", "in f"]
        );
    }

    #[test]
    fn sentences_that_do_not_fit_are_indented() {
        let fitting = "a ".repeat(WIDTH / 2 - 1) + "aa";
        assert_eq!(wrap_sentence(&fitting), [fitting.as_str()]);
        let word = "a".repeat(30);
        assert_eq!(
            wrap_sentence(&format!("{word} {word} {word}")),
            [format!("{word} {word}"), format!("  {word}")]
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
