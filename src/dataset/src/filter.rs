//! Conditions on the numbers of clips: `aesthetic >= 5 and ocr_score < 0.1 and motion between 0.5 and 20`.
//!
//! ```text
//! any     = all { "or" all }
//! all     = not { "and" not }
//! not     = "not" not | "(" any ")" | compare
//! compare = value ( "<" | "<=" | ">" | ">=" | "=" | "!=" ) value | value [ "not" ] "between" value "and" value
//! value   = NUMBER | COLUMN | "`" COLUMN "`"
//! ```
//!
//! A missing number is neither smaller nor larger than another one: the comparison has no result, and neither has its opposite. A clip
//! passes only if the result of every condition is true. This is the logic of SQL.

use std::ops::Range;
use std::str::FromStr;

/// The number of parentheses and `not` that may be within each other.
const DEPTH: usize = 64;
/// The hint of errors: conditions that can be read.
const EXAMPLE: &str = "for example: aesthetic >= 5 and motion between 0.5 and 20";

/// Conditions that a clip must meet.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// The text that was read.
    pub text: String,
    /// The conditions that `and` joins. A clip must meet all of them.
    pub conditions: Vec<Condition>,
}

/// A condition, which names one or more columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// Its part of the text.
    pub text: String,
    expression: Expression,
}

#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Any(Vec<Expression>),
    All(Vec<Expression>),
    Not(Box<Expression>),
    Compare(Value, Comparison, Value),
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(f64),
    Column(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Different,
}

/// The operators, those that begin with another one first.
const COMPARISONS: [(&str, Comparison); 8] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("!=", Comparison::Different),
    ("<>", Comparison::Different),
    ("==", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
    ("=", Comparison::Equal),
];

impl FromStr for Filter {
    type Err = String;

    /// Reads conditions. The error names the place in the text.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0 };
        let mut groups = vec![parser.all()?];
        while parser.takes_word("or") {
            groups.push(parser.all()?);
        }
        if parser.at < parser.tokens.len() {
            return Err(parser.expected("'and', 'or' or the end"));
        }
        let condition =
            |(expression, range): (Expression, Range<usize>)| Condition { text: text[range].into(), expression };
        let conditions: Vec<Condition> = match groups.len() {
            1 => groups.remove(0).into_iter().map(condition).collect(),
            _ => vec![condition((Expression::Any(groups.into_iter().map(together).collect()), 0..text.len()))],
        };
        if let Some(condition) = conditions.iter().find(|condition| condition.columns().next().is_none()) {
            return Err(format!("'{}' names no column; {EXAMPLE}", condition.text.trim()));
        }
        Ok(Self { text: text.trim().to_owned(), conditions })
    }
}

impl Filter {
    /// Returns the names of the columns, each once, in their order in the text.
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.conditions.iter().flat_map(Condition::columns) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Condition {
    /// Returns the names of the columns, in their order in the text.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.expression.columns().into_iter()
    }

    /// Returns whether a clip meets the condition; `None` if that depends on a number that is missing. `number` returns the number of
    /// a column.
    pub fn is_met(&self, number: &dyn Fn(&str) -> Option<f64>) -> Option<bool> {
        self.expression.result(number)
    }
}

impl Expression {
    fn columns(&self) -> Vec<&str> {
        match self {
            Self::Any(all) | Self::All(all) => all.iter().flat_map(Self::columns).collect(),
            Self::Not(not) => not.columns(),
            Self::Compare(a, _, b) => [a, b].into_iter().filter_map(Value::column).collect(),
        }
    }

    fn result(&self, number: &dyn Fn(&str) -> Option<f64>) -> Option<bool> {
        // A result that decides alone, else a missing one, else the other result.
        let joined = |all: &[Self], decides: bool| {
            let mut results = all.iter().map(|expression| expression.result(number));
            let joined = results.try_fold(Some(!decides), |joined, result| match result {
                Some(result) if result == decides => Err(()),
                None => Ok(None),
                Some(_) => Ok(joined),
            });
            joined.unwrap_or(Some(decides))
        };
        match self {
            Self::Any(all) => joined(all, true),
            Self::All(all) => joined(all, false),
            Self::Not(not) => not.result(number).map(|met| !met),
            Self::Compare(a, comparison, b) => {
                let of = |value: &Value| match value {
                    Value::Number(number) => Some(*number),
                    Value::Column(name) => number(name).filter(|number| number.is_finite()),
                };
                let (a, b) = (of(a)?, of(b)?);
                Some(match comparison {
                    Comparison::Less => a < b,
                    Comparison::AtMost => a <= b,
                    Comparison::Greater => a > b,
                    Comparison::AtLeast => a >= b,
                    Comparison::Equal => a == b,
                    Comparison::Different => a != b,
                })
            }
        }
    }
}

impl Value {
    fn column(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Column(name) => Some(name),
        }
    }
}

/// Joins expressions that must all be true.
fn together(mut all: Vec<(Expression, Range<usize>)>) -> Expression {
    if all.len() == 1 { all.remove(0).0 } else { Expression::All(all.into_iter().map(|(one, _)| one).collect()) }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    /// A keyword, or the name of a column.
    Word(String),
    /// The name of a column in backquotes.
    Quoted(String),
    Comparison(Comparison),
    Open,
    Close,
}

/// Splits a text into tokens, each with its place.
fn tokens(text: &str) -> Result<Vec<(Token, Range<usize>)>, String> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let until = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
        let place = || format!("at {}: '{}'", at + 1, rest.chars().take(20).collect::<String>());
        let (token, length) = match first {
            first if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '`' => {
                let end = rest[1..].find('`').ok_or_else(|| format!("a backquote is not closed {}", place()))?;
                (Token::Quoted(rest[1..=end].to_owned()), end + 2)
            }
            '\'' | '"' => {
                return Err(format!(
                    "a text {}; conditions compare numbers, and backquotes enclose the name of a column: `my column`",
                    place()
                ));
            }
            first if first.is_ascii_digit() || matches!(first, '.' | '-' | '+') => {
                let is_of_exponent = |at: usize| at > 0 && matches!(rest.as_bytes()[at - 1], b'e' | b'E');
                let ends = |(at, c): &(usize, char)| {
                    !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))
                        && !(matches!(c, '-' | '+') && (*at == 0 || is_of_exponent(*at)))
                };
                let end = rest.char_indices().find(ends).map_or(rest.len(), |(at, _)| at);
                let number = rest[..end].parse::<f64>().ok().filter(|number| number.is_finite());
                (Token::Number(number.ok_or_else(|| format!("not a number {}", place()))?), end)
            }
            first if first.is_alphabetic() || first == '_' => {
                let end = until(&|c| !(c.is_alphanumeric() || matches!(c, '_' | '.')));
                (Token::Word(rest[..end].to_owned()), end)
            }
            _ => {
                let found = COMPARISONS.iter().find(|(sign, _)| rest.starts_with(sign));
                let (sign, comparison) = found.ok_or_else(|| format!("an unknown sign {}; {EXAMPLE}", place()))?;
                (Token::Comparison(*comparison), sign.len())
            }
        };
        tokens.push((token, at..at + length));
        at += length;
    }
    Ok(tokens)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, Range<usize>)>,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn next(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    /// Returns whether the next token is this keyword, and goes past it.
    fn takes_word(&mut self, keyword: &str) -> bool {
        let is_it = matches!(self.next(), Some(Token::Word(word)) if word.eq_ignore_ascii_case(keyword));
        self.at += usize::from(is_it);
        is_it
    }

    fn takes(&mut self, token: &Token) -> bool {
        let is_it = self.next() == Some(token);
        self.at += usize::from(is_it);
        is_it
    }

    fn expected(&self, what: &str) -> String {
        let found = match self.tokens.get(self.at) {
            Some((_, range)) => format!("at {}: '{}'", range.start + 1, &self.text[range.clone()]),
            None => "at the end".into(),
        };
        format!("{what} is expected {found}; {EXAMPLE}")
    }

    /// Reads expressions that `and` joins, with their places.
    fn all(&mut self) -> Result<Vec<(Expression, Range<usize>)>, String> {
        let mut all = Vec::new();
        loop {
            let first = self.at;
            let expression = self.not()?;
            all.push((expression, self.tokens[first].1.start..self.tokens[self.at - 1].1.end));
            if !self.takes_word("and") {
                return Ok(all);
            }
        }
    }

    fn not(&mut self) -> Result<Expression, String> {
        let is_not = self.takes_word("not");
        if !is_not && !self.takes(&Token::Open) {
            return self.compare();
        }
        if self.depth == DEPTH {
            return Err(format!("more than {DEPTH} parentheses are within each other"));
        }
        self.depth += 1;
        let expression = if is_not {
            Expression::Not(Box::new(self.not()?))
        } else {
            let mut any = vec![together(self.all()?)];
            while self.takes_word("or") {
                any.push(together(self.all()?));
            }
            if !self.takes(&Token::Close) {
                return Err(self.expected("')'"));
            }
            if any.len() == 1 { any.remove(0) } else { Expression::Any(any) }
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn compare(&mut self) -> Result<Expression, String> {
        let left = self.value()?;
        let is_not = self.takes_word("not");
        if self.takes_word("between") {
            let low = self.value()?;
            if !self.takes_word("and") {
                return Err(self.expected("'and' of 'between … and …'"));
            }
            let (above, below) = ((left.clone(), Comparison::AtLeast, low), (left, Comparison::AtMost, self.value()?));
            let within = [above, below].map(|(a, comparison, b)| Expression::Compare(a, comparison, b));
            let within = Expression::All(within.into());
            return Ok(if is_not { Expression::Not(Box::new(within)) } else { within });
        }
        let comparison = match self.next() {
            Some(Token::Comparison(comparison)) if !is_not => *comparison,
            _ => return Err(self.expected(if is_not { "'between'" } else { "a comparison such as '>='" })),
        };
        self.at += 1;
        Ok(Expression::Compare(left, comparison, self.value()?))
    }

    fn value(&mut self) -> Result<Value, String> {
        const KEYWORDS: [&str; 4] = ["and", "or", "not", "between"];
        let value = match self.next() {
            Some(Token::Number(number)) => Value::Number(*number),
            Some(Token::Quoted(name)) => Value::Column(name.clone()),
            Some(Token::Word(word)) if !KEYWORDS.iter().any(|keyword| word.eq_ignore_ascii_case(keyword)) => {
                Value::Column(word.clone())
            }
            _ => return Err(self.expected("a column or a number")),
        };
        self.at += 1;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Filter {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// Whether a clip with `a`, `b` and `my column` passes; `None` if a missing number decides. `c` is missing.
    fn result(text: &str, a: f64) -> Option<bool> {
        let number = |name: &str| match name {
            "a" => Some(a),
            "b" => Some(10.0),
            "my column" => Some(-3.0),
            "nan" => Some(f64::NAN),
            _ => None,
        };
        let results = filter(text).conditions.iter().map(|condition| condition.is_met(&number)).collect::<Vec<_>>();
        if results.contains(&Some(false)) {
            Some(false)
        } else {
            results.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    }

    #[test]
    fn comparisons_have_the_usual_meaning_and_precedence() {
        for (text, at, expected) in [
            ("a >= 5", 5.0, true),
            ("a > 5", 5.0, false),
            ("a <= 5 and a < 5", 5.0, false),
            ("5 = a", 5.0, true),
            ("a == 5 AND a <> 6 and a != 7", 5.0, true),
            ("a between 0.5 and 20 and b = 10", 20.0, true),
            ("a BETWEEN 0.5 and b", 10.5, false),
            ("a not between 1 and 2", 3.0, true),
            ("a < 1 or a > 2 and b = 11", 0.0, true),
            ("(a < 1 or a > 2) and b = 11", 0.0, false),
            ("not a < 1 and b = 10", 1.0, true),
            ("not (a < 1 or b = 10)", 5.0, false),
            ("`my column` < -2.5", 0.0, true),
            ("a = 1e-3", 0.001, true),
            ("a>-1.5E+2 and a<0", -149.0, true),
        ] {
            assert_eq!(result(text, at), Some(expected), "{text} at {at}");
        }
    }

    #[test]
    fn a_missing_number_never_passes_and_neither_does_its_opposite() {
        for text in
            ["c > 1", "not c > 1", "c != 1", "c between 0 and 1", "c not between 0 and 1", "nan < 5", "nan != 5"]
        {
            assert_eq!(result(text, 0.0), None, "{text}");
        }
        assert_eq!(result("c > 1 or a = 0", 0.0), Some(true));
        assert_eq!(result("c > 1 or a = 1", 0.0), None);
        assert_eq!(result("(c > 1 and a = 1)", 0.0), Some(false));
        assert_eq!(result("not (c > 1 and a = 1)", 0.0), Some(true));
    }

    #[test]
    fn conditions_that_and_joins_are_counted_one_by_one() {
        let texts = |text| filter(text).conditions.into_iter().map(|condition| condition.text).collect::<Vec<_>>();
        assert_eq!(
            texts("aesthetic >= 5 and ocr_score<0.1 and motion between 0.5 and 20"),
            ["aesthetic >= 5", "ocr_score<0.1", "motion between 0.5 and 20"]
        );
        assert_eq!(texts("a > 1 or b > 1 and c > 1"), ["a > 1 or b > 1 and c > 1"]);
        assert_eq!(texts("(a > 1 or b > 1) and not c > 1"), ["(a > 1 or b > 1)", "not c > 1"]);
        assert_eq!(filter("b > a and b < 2").columns(), ["b", "a"]);
    }

    #[test]
    fn a_text_that_is_no_condition_is_refused_with_the_place() {
        for (text, part) in [
            ("", "at the end"),
            ("a", "at the end"),
            ("a >= ", "at the end"),
            ("a > and b > 1", "at 5: 'and'"),
            ("a > 1 b > 2", "at 7: 'b'"),
            ("a between 1 or 2", "at 13: 'or'"),
            ("(a > 1", "')' is expected"),
            ("a > 1)", "at 6: ')'"),
            ("source = 'pexels'", "a text at 10"),
            ("1 > 2", "names no column"),
            ("a > 1.2.3", "not a number at 5"),
            ("a > 1e999", "not a number"),
            ("a ~ 2", "unknown sign at 3"),
            ("`a > 1", "backquote"),
            ("a not > 1", "'between' is expected"),
            ("a > 1 or", "at the end"),
            ("é > 1 ö", "at 8"),
        ] {
            let why = text.parse::<Filter>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        let deep = "(".repeat(100_000);
        assert!(deep.parse::<Filter>().unwrap_err().contains("64"));
        assert!("not ".repeat(100_000).parse::<Filter>().is_err());
    }
}
