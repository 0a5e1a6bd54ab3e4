//! Prompts with flags, in the form of musubi-tuner: one per line, `#` begins a comment.

use camino::Utf8PathBuf;

/// A prompt and the values that it sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prompt {
    /// The texts, separated by `||`: one, or one for each segment.
    pub texts: Vec<String>,
    /// `--w`: columns in pixels.
    pub width: Option<usize>,
    /// `--h`: rows in pixels.
    pub height: Option<usize>,
    /// `--f`: frames.
    pub frames: Option<usize>,
    /// `--d`: seed.
    pub seed: Option<u64>,
    /// `--s`: sampling steps.
    pub steps: Option<usize>,
    /// `--g` or `--l`: scale of guidance.
    pub guidance: Option<f64>,
    /// `--n`: the negative texts, separated by `||`: one, or one for each segment.
    pub negative: String,
    /// `--i`: first image.
    pub image: Option<Utf8PathBuf>,
    /// `--e`: last image.
    pub image_end: Option<Utf8PathBuf>,
    /// `--v`: video whose masked pixels are replaced.
    pub video: Option<Utf8PathBuf>,
    /// `--m`: mask of the video.
    pub mask: Option<Utf8PathBuf>,
}

/// A flag that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongFlag {
    /// The flag with its dashes.
    pub flag: String,
    /// Why it cannot be read.
    pub why: String,
    /// The hint: what to change.
    pub fix: String,
}

/// The flags, with their meaning.
const FLAGS: &[(&str, &str)] = &[
    ("w", "width in pixels"),
    ("h", "height in pixels"),
    ("f", "frames"),
    ("d", "seed"),
    ("s", "sampling steps"),
    ("g", "guidance scale"),
    ("l", "guidance scale"),
    ("n", "negative text"),
    ("i", "path of the first image"),
    ("e", "path of the last image"),
    ("v", "path of a video"),
    ("m", "path of the mask of the video"),
];

/// The largest size in pixels, number of frames or number of steps.
const MANY: u64 = 1_000_000;

impl Prompt {
    /// Reads a prompt with flags: `a rabbit on a meadow --w 720 --h 480 --d 42`.
    ///
    /// # Errors
    /// Returns the first flag that is unknown or has a wrong value.
    pub fn parse(line: &str) -> Result<Prompt, WrongFlag> {
        // A flag stands at the start or after a space, so that "--" within a word belongs to the text.
        let padded = format!(" {line}");
        let mut parts = padded.split(" --");
        let text = parts.next().unwrap_or_default();
        let mut prompt =
            Prompt { texts: text.split("||").map(|text| text.trim().to_owned()).collect(), ..Prompt::default() };
        for part in parts {
            let (name, value) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
            prompt.set(name, value.trim())?;
        }
        Ok(prompt)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), WrongFlag> {
        let wrong = |why: String, fix: String| WrongFlag { flag: format!("--{name}"), why, fix };
        let Some((_, meaning)) = FLAGS.iter().find(|(flag, _)| *flag == name) else {
            let known: Vec<_> = FLAGS.iter().map(|(flag, _)| format!("--{flag}")).collect();
            let fix = format!("use {}, or write the text without \" --\"", known.join(", "));
            return Err(wrong(format!("--{name} is not a flag of a prompt"), fix));
        };
        let whole = || match value.parse::<u64>() {
            Ok(number) if number <= MANY || name == "d" => Ok(number),
            Ok(number) => Err(wrong(format!("{number} is too large for the {meaning}"), format!("use at most {MANY}"))),
            Err(_) => Err(wrong(
                format!("'{value}' is not a whole number, and --{name} is the {meaning}"),
                format!("write --{name} with a number"),
            )),
        };
        match name {
            "w" => self.width = Some(whole()? as usize),
            "h" => self.height = Some(whole()? as usize),
            "f" => self.frames = Some(whole()? as usize),
            "s" => self.steps = Some(whole()? as usize),
            "d" => self.seed = Some(whole()?),
            "n" => self.negative = value.to_owned(),
            "i" | "e" | "v" | "m" if value.is_empty() => {
                return Err(wrong(format!("--{name} has no path"), format!("write --{name} with the {meaning}")));
            }
            "i" => self.image = Some(value.into()),
            "e" => self.image_end = Some(value.into()),
            "v" => self.video = Some(value.into()),
            "m" => self.mask = Some(value.into()),
            _ => {
                let number = value.parse::<f64>().ok().filter(|scale| scale.is_finite() && *scale >= 0.0);
                let why = || format!("'{value}' is not a number of 0 or more, and --{name} is the {meaning}");
                self.guidance = Some(number.ok_or_else(|| wrong(why(), format!("write --{name} 6")))?);
            }
        }
        Ok(())
    }

    /// Returns the negative texts: one, or one for each segment.
    pub fn negative_texts(&self) -> Vec<String> {
        self.negative.split("||").map(|text| text.trim().to_owned()).collect()
    }

    /// Returns the line that [`Prompt::parse`] reads as this prompt.
    pub fn to_line(&self) -> String {
        let mut line = self.texts.join(" || ");
        let mut add = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                line += &format!(" --{flag} {value}");
            }
        };
        add("w", self.width.map(|n| n.to_string()));
        add("h", self.height.map(|n| n.to_string()));
        add("f", self.frames.map(|n| n.to_string()));
        add("d", self.seed.map(|n| n.to_string()));
        add("s", self.steps.map(|n| n.to_string()));
        add("g", self.guidance.map(|n| n.to_string()));
        add("n", (!self.negative.is_empty()).then(|| self.negative.clone()));
        for (flag, path) in [("i", &self.image), ("e", &self.image_end), ("v", &self.video), ("m", &self.mask)] {
            add(flag, path.as_ref().map(ToString::to_string));
        }
        line
    }
}

/// Returns the prompts of a file with their line numbers, from 1. Empty lines and comments are left out.
pub fn prompt_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_survives_a_round_trip() {
        let line = "a well--known rabbit || a hare --w 720 --h 480 --f 49 --d 18446744073709551615 --s 50 --g 6.5 --n blurry, dark --i /a b.png --e /c.png --v /d.mp4 --m /e.png";
        let prompt = Prompt::parse(line).unwrap();
        assert_eq!(prompt.texts, ["a well--known rabbit", "a hare"]);
        assert_eq!((prompt.width, prompt.height, prompt.frames), (Some(720), Some(480), Some(49)));
        assert_eq!((prompt.seed, prompt.steps, prompt.guidance), (Some(u64::MAX), Some(50), Some(6.5)));
        assert_eq!((prompt.negative.as_str(), prompt.image.as_ref().unwrap().as_str()), ("blurry, dark", "/a b.png"));
        assert_eq!(prompt.image_end.as_ref().unwrap().as_str(), "/c.png");
        assert_eq!(
            (prompt.video.as_ref().unwrap().as_str(), prompt.mask.as_ref().unwrap().as_str()),
            ("/d.mp4", "/e.png")
        );
        assert_eq!(prompt.to_line(), line);
        assert_eq!(Prompt::parse("").unwrap().texts, [""]);
        assert_eq!(Prompt::parse("--d 3").unwrap().seed, Some(3));
    }

    #[test]
    fn a_wrong_flag_is_named() {
        for (line, flag) in [
            ("a --w 4a", "--w"),
            ("a --w -5", "--w"),
            ("a --h", "--h"),
            ("a --f 99999999", "--f"),
            ("a --g nan", "--g"),
            ("a --quality high", "--quality"),
            ("a --i", "--i"),
        ] {
            assert_eq!(Prompt::parse(line).unwrap_err().flag, flag, "{line}");
        }
    }

    #[test]
    fn comments_and_empty_lines_of_a_file_are_not_prompts() {
        let text = "# rabbits\n\na rabbit --d 1\r\n   # more\n a hare \n";
        assert_eq!(prompt_lines(text).collect::<Vec<_>>(), [(3, "a rabbit --d 1"), (5, "a hare")]);
    }
}
