//! A self-contained HTML page. It has no script and loads no other file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write;
use units::terminal::printable;

/// The HTML of a page. Only the methods write to it, and they escape the text that they add.
pub struct Page(String);

impl Page {
    /// Begins a page with a title.
    pub fn new(title: &str) -> Self {
        let title = escaped(title);
        Self(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; media-src data:; img-src data:\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        ))
    }

    fn add(&mut self, html: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(html);
    }

    /// Adds a heading of a section.
    pub fn heading(&mut self, text: &str) {
        self.add(format_args!("<h2>{}</h2>\n", escaped(text)));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.add(format_args!("<p>{}</p>\n", escaped(text)));
    }

    /// Adds text whose line breaks remain.
    pub fn pre(&mut self, text: &str) {
        self.add(format_args!("<pre>{}</pre>\n", escaped(text)));
    }

    /// Adds a table without a header.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        self.add(format_args!("<div class=\"wide\"><table>\n"));
        for row in rows {
            let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
            self.add(format_args!("<tr>{cells}</tr>\n"));
        }
        self.add(format_args!("</table></div>\n"));
    }

    /// Adds an SVG chart, in which plotters has already escaped the text.
    pub fn figure(&mut self, svg: &str, label: &str) {
        self.add(format_args!("<figure><figcaption>{}</figcaption>\n{svg}</figure>\n", escaped(label)));
    }

    /// Adds a player with a video.
    pub fn video(&mut self, mp4: &[u8], caption: &str) {
        let data = STANDARD.encode(mp4);
        self.add(format_args!(
            "<figure class=\"sample\"><video controls loop muted src=\"data:video/mp4;base64,{data}\"></video><figcaption>{}</figcaption></figure>\n",
            escaped(caption)
        ));
    }

    /// Adds a link to a file of this machine.
    pub fn link(&mut self, path: &str, caption: &str) {
        let url: String = path.bytes().map(url_byte).collect();
        self.add(format_args!("<p><a href=\"file://{url}\">{}</a></p>\n", escaped(caption)));
    }

    /// Ends the page and returns its HTML.
    pub fn finish(self) -> String {
        self.0 + "</body>\n</html>\n"
    }
}

/// Escapes text for an HTML element or a quoted attribute. The page can also be read in a terminal.
fn escaped(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// Percent-encodes a byte for the path of a URL (RFC 3986, section 2).
fn url_byte(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

/// The style sheet. Charts are drawn on white; in dark mode, the filter inverts their lightness and keeps their hues.
const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #222b38; --faint: #6b7585; --line: #e4e8ee; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe5ee; --faint: #98a2b3; --line: #313947; --page: #14181f; }
  svg { filter: invert(0.92) hue-rotate(180deg); }
}
body { max-width: 1200px; margin: 2em auto; padding: 0 1em; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; } td { padding: .25em 1em .25em 0; vertical-align: top; border-bottom: 1px solid var(--line); white-space: pre-wrap; overflow-wrap: anywhere; }
td:first-child { color: var(--faint); white-space: nowrap; } .wide { overflow-x: auto; }
pre { overflow-x: auto; padding: 1em; border: 1px solid var(--line); }
figure { margin: 1em 0; } figcaption { color: var(--faint); } svg { width: 100%; height: auto; }
.sample { display: inline-block; width: 31%; min-width: 260px; margin: 0 1% 1em 0; vertical-align: top; } video { width: 100%; }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_a_page_is_escaped_once() {
        let hostile = "<script>\"'&\u{1b}]0;x\u{7}";
        let mut page = Page::new(hostile);
        page.heading(hostile);
        page.paragraph(hostile);
        page.pre(hostile);
        page.table(&[vec![hostile.to_owned()]]);
        page.figure("", hostile);
        page.video(b"", hostile);
        page.link(hostile, hostile);
        let html = page.finish();
        assert!(!html.contains("<script") && !html.contains('\u{1b}') && !html.contains('\u{7}'), "{html}");
        assert_eq!(html.matches("&lt;script&gt;&quot;&#39;&amp;").count(), 9, "{html}");
        assert!(!html.contains("&amp;lt;"), "{html}");
    }
}
