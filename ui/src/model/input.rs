//! The text input in the notice line: its purpose, its text and the cursor.

use crate::bindings::{Action, Screen};
use units::terminal::is_control;

/// The open text input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// What the text is for.
    pub purpose: Purpose,
    /// The text typed so far.
    pub text: String,
    /// The position of the cursor in `text`, in bytes.
    pub(crate) cursor: usize,
    /// Whether the text is a proposal, which the first typed or pasted text replaces.
    pub(crate) is_proposal: bool,
}

/// The purpose of a text input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Filters the list of runs.
    Filter,
    /// Filters the list of recipes.
    RecipeFilter,
    /// Filters the list of nodes.
    NodeFilter,
    /// Searches a log.
    Search,
    /// Chooses the ranks of a log.
    LogRanks,
    /// The source of a conversion.
    ConvertSource,
    /// The target of a conversion.
    ConvertTarget,
    /// The LoRA adapter to merge.
    ConvertMerge,
    /// The arguments of an encode.
    Encode,
    /// The arguments of an attach.
    Attach,
    /// The arguments of a launch.
    Launch,
    /// The prompt of a video.
    Prompt,
    /// The arguments of a resume.
    Resume,
    /// The note of a run.
    Note,
    /// The file of an exported chart.
    Export,
    /// The file of an exported comparison.
    ExportComparison,
    /// An overridden key of the launch form.
    Override,
    /// The number of ranks of the launch form.
    Ranks,
    /// The initial weights of the launch form.
    Weights,
}

impl Purpose {
    /// Returns the screen that has the input.
    pub fn screen(self) -> Screen {
        match self {
            Self::Filter | Self::Encode | Self::Attach | Self::Note => Screen::Runs,
            Self::RecipeFilter => Screen::Recipes,
            Self::NodeFilter => Screen::Nodes,
            Self::Search | Self::LogRanks => Screen::Logs,
            Self::ConvertSource | Self::ConvertTarget | Self::ConvertMerge => Screen::Convert,
            Self::Launch => Screen::Stages,
            Self::Prompt => Screen::Samples,
            Self::Resume | Self::Export => Screen::Run,
            Self::ExportComparison => Screen::Compare,
            Self::Override | Self::Ranks | Self::Weights => Screen::Launch,
        }
    }

    /// Returns the text before the input.
    pub fn title(self) -> &'static str {
        match self {
            Self::Filter => "Filter runs: ",
            Self::RecipeFilter => "Filter recipes: ",
            Self::NodeFilter => "Filter nodes: ",
            Self::Search => "Search: ",
            Self::LogRanks => "Ranks: ",
            Self::ConvertSource => "Source: ",
            Self::ConvertTarget => "New folder: ",
            Self::ConvertMerge => "LoRA adapter: ",
            Self::Encode => "vidtui data encode ",
            Self::Attach => "vidtui attach ",
            Self::Launch => "vidtui launch ",
            Self::Prompt => "Prompt: ",
            Self::Resume => "Resume with: ",
            Self::Note => "Note: ",
            Self::Export | Self::ExportComparison => "Export to: ",
            Self::Override => "Override: ",
            Self::Ranks => "Ranks: ",
            Self::Weights => "Weights: ",
        }
    }

    /// Returns the placeholder that shows the expected form of the text until the user types.
    pub fn form(self) -> &'static str {
        match self {
            Self::Encode => "VIDEOS --model FOLDER --out DATA --for RECIPE",
            Self::Attach => "LOG, TENSORBOARD FOLDER or W&B RUN --steps N --pid PID",
            Self::Launch => "RECIPE --init WEIGHTS --set data.index=DATA",
            Self::Prompt => "TEXT --d SEED --s STEPS --g GUIDANCE",
            Self::Resume => "--set optimizer.lr=1e-5 --schedule keep --fresh-data --step STEP",
            Self::Note => "one line; words with # are tags",
            Self::Export | Self::ExportComparison => "FILE.svg or FILE.png",
            Self::Override => "train.steps=100",
            Self::LogRanks => "0-3,8; empty: all ranks",
            Self::Ranks => "as many as the mesh has",
            Self::Weights => "PATH or RUN; empty: the weights of the stage, or random ones",
            _ => "",
        }
    }

    /// Returns whether the text takes effect with every key press, before Enter.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Filter | Self::RecipeFilter | Self::NodeFilter | Self::Search | Self::LogRanks)
    }

    /// Returns whether Enter shows the plan of a run.
    pub fn plans(self) -> bool {
        matches!(self, Self::Encode | Self::Attach | Self::Launch | Self::Prompt | Self::Resume)
    }

    /// Returns whether the input is a field of the launch form.
    pub fn is_of_form(self) -> bool {
        self.screen() == Screen::Launch
    }
}

/// Returns text for a field of one line. A line break becomes a space, together with the spaces around it and a backslash before it, which
/// continues a command; at the ends of the text, it is dropped. Tabs become spaces. Characters that control a terminal are dropped.
pub(crate) fn one_line(text: &str) -> String {
    const BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    let joined = if text.contains(BREAKS) {
        let lines = text.split(BREAKS).map(|line| line.strip_suffix('\\').unwrap_or(line).trim());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    } else {
        text.to_owned()
    };
    joined.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !is_control(*c)).collect()
}

impl Input {
    /// Opens an input with the cursor at the end of a text.
    pub fn new(purpose: Purpose, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { purpose, cursor: text.len(), text, is_proposal: false }
    }

    /// Opens an input with a proposal. Typed or pasted text replaces it, unless the user moves the cursor or deletes a part of it first.
    pub fn with_proposal(purpose: Purpose, text: impl Into<String>) -> Self {
        Self { is_proposal: true, ..Self::new(purpose, text) }
    }

    /// Inserts typed or pasted text at the cursor, as `one_line` returns it.
    pub fn insert(&mut self, text: &str) {
        let text = one_line(text);
        if std::mem::take(&mut self.is_proposal) {
            self.text.clear();
            self.cursor = 0;
        }
        self.text.insert_str(self.cursor, &text);
        self.cursor += text.len();
    }

    /// Moves the cursor, or deletes text. Returns whether the action is one of these.
    pub fn edit(&mut self, action: Action) -> bool {
        let (before, after) = self.parts();
        let previous = before.char_indices().next_back().map_or(0, |(at, _)| at);
        let next = self.cursor + after.chars().next().map_or(0, char::len_utf8);
        match action {
            Action::CursorLeft => self.cursor = previous,
            Action::CursorRight => self.cursor = next,
            Action::LineStart => self.cursor = 0,
            Action::LineEnd => self.cursor = self.text.len(),
            Action::DeleteBefore => self.delete_from(previous),
            Action::DeleteAfter => _ = self.text.drain(self.cursor..next),
            Action::DeleteWord => {
                let word = before.trim_end().rfind(char::is_whitespace);
                let start = word.map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
                self.delete_from(start);
            }
            Action::DeleteToStart => self.delete_from(0),
            _ => return false,
        }
        self.is_proposal = false;
        true
    }

    /// Returns the text before and after the cursor.
    pub fn parts(&self) -> (&str, &str) {
        self.text.split_at(self.cursor)
    }

    fn delete_from(&mut self, start: usize) {
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, actions: &[Action]) -> String {
        let mut input = Input::new(Purpose::Encode, text);
        assert!(actions.iter().all(|action| input.edit(*action)));
        let (before, after) = input.parts();
        format!("{before}|{after}")
    }

    #[test]
    fn text_is_edited_at_the_cursor() {
        use Action::*;
        assert_eq!(edited("clips --out dätä", &[CursorLeft, CursorLeft, DeleteBefore]), "clips --out d|tä");
        assert_eq!(edited("clips --out dätä", &[CursorLeft, DeleteAfter, DeleteAfter]), "clips --out dät|");
        assert_eq!(edited("clips --out data  ", &[DeleteWord]), "clips --out |");
        assert_eq!(edited("clips", &[DeleteWord, DeleteWord, DeleteBefore, CursorLeft]), "|");
        assert_eq!(edited("a b", &[LineStart, CursorRight, CursorRight, DeleteToStart]), "|b");
        assert_eq!(edited("a b", &[LineStart, LineEnd, CursorRight]), "a b|");
        let mut input = Input::new(Purpose::Prompt, "a hill");
        assert!(input.edit(LineStart));
        input.insert("ä");
        input.insert(" ");
        assert_eq!(input.text, "ä a hill");
        assert!(!input.edit(Accept));
    }

    #[test]
    fn the_first_typed_text_replaces_a_proposal_that_was_not_edited() {
        let typed = |action: Option<Action>| {
            let mut input = Input::with_proposal(Purpose::ConvertTarget, "n3eg-internal");
            action.into_iter().for_each(|action| _ = input.edit(action));
            input.insert("a");
            input.insert("b");
            input.text
        };
        assert_eq!(typed(None), "ab");
        assert_eq!(typed(Some(Action::LineEnd)), "n3eg-internalab");
        assert_eq!(typed(Some(Action::DeleteBefore)), "n3eg-internaab");
    }

    #[test]
    fn pasted_lines_are_one_line() {
        for (pasted, line) in [
            ("demo\n", "demo"),
            // Terminals send a carriage return for each line break.
            ("a hill\r\rat  night\r\n", "a hill at  night"),
            ("recipe.toml \\\n    --set train.steps=3", "recipe.toml --set train.steps=3"),
            (" a\tb ", " a b "),
            ("\x1b[31mred\u{202e}\u{9b}", "[31mred"),
            ("实验一 می‌خواهم", "实验一 می‌خواهم"),
            ("\n\n", ""),
        ] {
            assert_eq!(one_line(pasted), line, "{pasted:?}");
        }
    }
}
