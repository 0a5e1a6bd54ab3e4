//! Tests of the layouts: common forms of data sets, and malformed ones.

use super::*;
use camino::Utf8Path;
use std::fs;

/// A folder that a test fills.
struct Folder {
    _keep: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Folder {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().canonicalize_utf8().unwrap();
        Self { _keep: keep, path }
    }

    fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    fn request(&self) -> SourceRequest {
        SourceRequest { source: self.path.clone(), ..SourceRequest::default() }
    }

    fn read(&self) -> SourceListing {
        read_source(&self.request()).unwrap()
    }

    fn fails(&self) -> Failure {
        read_source(&self.request()).unwrap_err()
    }
}

/// The names and captions of rows.
fn rows(source: &SourceListing) -> Vec<(&str, Result<&str, CaptionFault>)> {
    source.rows.iter().map(|row| (row.name.as_str(), row.caption.as_deref().map_err(|fault| *fault))).collect()
}

/// The fault of a caption, or of a file of JSON.
fn not_utf8(bytes: &[u8]) -> CaptionFault {
    CaptionFault::NotUtf8(text_file::check(bytes).unwrap_err())
}

#[test]
fn videos_are_paired_with_the_text_files_beside_them() {
    let folder = Folder::new()
        .with("b.MP4", "")
        .with("b.txt", "\u{feff}two\r\nlines\n")
        .with("sub/a.webm", "")
        .with("sub/a.txt", " ")
        .with("c.mov", "")
        .with("d.mkv", "")
        .with("d.txt", b"caf\xe9")
        .with("alone.txt", "no video")
        .with("frame.png", "")
        .with(".hidden/e.mp4", "");
    let source = folder.read();
    assert_eq!(source.layout, Layout::Pairs);
    let expected = [
        ("b.MP4", Ok("two\nlines")),
        ("c.mov", Err(CaptionFault::Missing)),
        ("d.mkv", Err(not_utf8(b"caf\xe9"))),
        ("sub/a.webm", Err(CaptionFault::Empty)),
    ];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.rows[3].path, folder.path.join("sub/a.webm"));
    assert_eq!(source.notes.len(), 2, "{:?}", source.notes);
}

#[test]
fn pictures_without_a_caption_and_those_of_other_formats_are_counted_apart() {
    let folder = Folder::new()
        .with("a.mp4", "")
        .with("a.txt", "a cat")
        .with("a.png", "")
        .with("b.jpg", "")
        .with("c.webp", "")
        .with("c.txt", "a dog")
        .with("d.bmp", "")
        .with("d.txt", "a bird")
        .with("e.avif", "");
    let files = super::pairs::Files::below(&folder.path).unwrap();
    assert_eq!((files.videos.len(), files.pictures.len()), (1, 1));
    assert_eq!((files.without_caption, files.other_pictures), (2, 2));
    // The caption without a video is that of d.bmp.
    assert_eq!(folder.read().notes.len(), 3, "{:?}", folder.read().notes);
}

#[test]
fn a_folder_of_pictures_with_a_text_file_beside_it_is_a_clip() {
    let folder = Folder::new()
        .with("a/1.png", "")
        .with("a/2.png", "")
        .with("a.txt", "a cat")
        .with("sub/b.v2/0001.JPG", "")
        .with("sub/b.v2.txt", "a dog")
        .with("c/1.webp", "");
    let source = folder.read();
    assert_eq!(source.layout, Layout::Frames);
    let expected = [("a", Ok("a cat")), ("c", Err(CaptionFault::Missing)), ("sub/b.v2", Ok("a dog"))];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.rows[2].path, folder.path.join("sub/b.v2"));
    assert!(source.notes.is_empty(), "{:?}", source.notes);
}

#[test]
fn folders_of_frames_beside_videos_are_clips_and_other_folders_of_pictures_are_skipped() {
    let folder = Folder::new()
        .with("a.mp4", "")
        .with("a.txt", "of the video, not of its thumbnails")
        .with("a/1.png", "")
        .with("b/1.png", "")
        .with("b/2.png", "")
        .with("b.txt", "frames")
        .with("c/1.png", "")
        .with("c/1.txt", "a picture with its own caption")
        .with("c/2.png", "")
        .with("c.txt", "an album")
        .with("d/1.png", "");
    let source = folder.read();
    assert_eq!(source.layout, Layout::Pairs);
    let expected = [
        ("a.mp4", Ok("of the video, not of its thumbnails")),
        ("c/1.png", Ok("a picture with its own caption")),
        ("b", Ok("frames")),
    ];
    assert_eq!(rows(&source), expected);
    let files = super::pairs::Files::below(&folder.path).unwrap();
    assert_eq!((files.frame_folders.len(), files.picture_folders.len(), files.without_caption), (1, 4, 3));
    // The caption of the album has no clip, and three pictures are skipped.
    assert_eq!(source.notes.len(), 2, "{:?}", source.notes);
    let layout = |layout| read_source(&SourceRequest { layout: Some(layout), ..folder.request() }).unwrap();
    assert_eq!(rows(&layout(Layout::Pairs)), expected);
    let frames = layout(Layout::Frames);
    let names: Vec<&str> = frames.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert!(frames.notes.iter().any(|note| note.contains("1 video skipped")), "{:?}", frames.notes);
}

#[test]
fn a_link_to_a_folder_above_is_not_followed_forever() {
    let folder = Folder::new().with("a.mp4", "");
    std::os::unix::fs::symlink(&folder.path, folder.path.join("again")).unwrap();
    assert_eq!(folder.read().rows.len(), 1);
}

#[test]
fn links_to_files_and_folders_elsewhere_are_followed_and_each_folder_is_listed_once() {
    let elsewhere = Folder::new().with("x/a.mp4", "").with("x/a.txt", "a cat").with("b.mp4", "").with("b.txt", "a dog");
    let folder = Folder::new().with("c.mp4", "");
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(elsewhere.path.join(to), folder.path.join(name)).unwrap();
    };
    for name in ["second", "first", "third"] {
        link("x", name);
    }
    link("b.mp4", "b.mp4");
    link("b.txt", "b.txt");
    let expected = [("b.mp4", Ok("a dog")), ("c.mp4", Err(CaptionFault::Missing)), ("first/a.mp4", Ok("a cat"))];
    assert_eq!(rows(&folder.read()), expected);
}

#[test]
fn a_file_name_that_is_not_utf8_is_excluded() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new().with("a.mp4", "");
    fs::write(folder.path.as_std_path().join(std::ffi::OsStr::from_bytes(b"b\xff.mp4")), "").unwrap();
    let source = folder.read();
    assert_eq!(source.rows[1].excluded, Some(ExclusionReason::NameNotUtf8));
}

#[test]
fn lists_are_read_line_by_line() {
    let folder = Folder::new()
        .with("captions.txt", b"one\n\ncaf\xe9\nfour\n")
        .with("videos.txt", "a.mp4\r\nsub/b.mp4\nc.mp4\n../d.mp4\n");
    let source = folder.read();
    assert_eq!(source.layout, Layout::Lists);
    let expected = [
        ("a.mp4", Ok("one")),
        ("sub/b.mp4", Err(CaptionFault::Empty)),
        ("c.mp4", Err(not_utf8(b"caf\xe9"))),
        ("../d.mp4", Ok("four")),
    ];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.rows[3].excluded, Some(ExclusionReason::OutsideFolder));
    assert_eq!(source.rows[1].origin, "captions.txt line 2");
}

#[test]
fn lists_of_different_lengths_are_refused() {
    let failure = Folder::new().with("prompts.txt", "one\ntwo\n").with("videos.txt", "a.mp4").fails();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    assert!(failure.why.contains("prompts.txt") && failure.why.contains("videos.txt"), "{failure}");
}

#[test]
fn csv_keeps_quotes_and_newlines_and_marks_captions_that_are_not_utf8() {
    let text = b"\xef\xbb\xbffile_name,text,num_frames\r\na.mp4,\"a \"\"cat\"\",\nasleep\",49\r\nb.mp4,caf\xe9,\r\nc.mp4,,7\r\n";
    let folder = Folder::new().with("metadata.csv", text);
    let source = folder.read();
    assert_eq!(source.layout, Layout::Table);
    let expected = [
        ("a.mp4", Ok("a \"cat\",\nasleep")),
        ("b.mp4", Err(not_utf8(b"caf\xe9"))),
        ("c.mp4", Err(CaptionFault::Empty)),
    ];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.rows[0].stated.frames, 49);
    // A caption of two lines is counted as two lines of the file.
    assert_eq!(source.rows[1].origin, "metadata.csv line 4");
}

#[test]
fn files_in_utf_16_are_read_and_other_encodings_are_refused_by_name() {
    let utf16 = |text: &str| {
        let units = text.encode_utf16().flat_map(u16::to_le_bytes);
        [b"\xff\xfe".to_vec(), units.collect()].concat()
    };
    let lines = "{\"video\": \"a.mp4\", \"caption\": \"é\"}\r\n";
    let folders = [
        Folder::new().with("metadata.csv", utf16("video,caption\r\na.mp4,é\r\n")),
        Folder::new().with("metadata.jsonl", utf16(lines)),
        Folder::new().with("prompts.txt", utf16("é\r\n")).with("videos.txt", utf16("a.mp4\r\n")),
        Folder::new().with("a.mp4", "").with("a.txt", utf16("é\r\n")),
    ];
    for folder in folders {
        assert_eq!(rows(&folder.read()), [("a.mp4", Ok("é"))]);
    }
    let without_mark = Folder::new().with("metadata.csv", &utf16("video,caption\na.mp4,b\n")[2..]).fails();
    assert!(without_mark.fix.contains("iconv -f UTF-16LE"), "{without_mark}");
    let workbook = Folder::new().with("metadata.csv", b"PK\x03\x04").fails();
    assert!(workbook.why.contains("ZIP"), "{workbook}");
}

#[test]
fn a_name_in_a_table_that_is_not_utf_8_is_said_so() {
    let source = Folder::new().with("metadata.csv", b"video,caption\ncaf\xe9.mp4,a\n").read();
    assert_eq!(source.rows[0].excluded, Some(ExclusionReason::NameNotUtf8));
}

#[test]
fn a_video_and_its_caption_may_differ_in_how_accents_are_written() {
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    let folder = Folder::new().with(&format!("{decomposed}.mp4"), "").with(&format!("{composed}.txt"), "a cat");
    assert_eq!(rows(&folder.read()), [("cafe\u{301}.mp4", Ok("a cat"))]);
    assert_eq!(folder.read().notes, [""; 0]);
}

#[test]
fn a_folder_with_metadata_tsv_is_a_table_and_not_pairs() {
    let folder = Folder::new()
        .with("metadata.tsv", "video\tcaption\na.mp4\ta cat, asleep\n")
        .with("a.mp4", "")
        .with("a.txt", "of the file");
    let source = folder.read();
    assert_eq!(source.layout, Layout::Table);
    assert_eq!(rows(&source), [("a.mp4", Ok("a cat, asleep"))]);
}

#[test]
fn open_sora_s_table_has_absolute_paths_and_sizes() {
    let folder = Folder::new().with(
        "train.csv",
        "path,text,num_frames,height,width,aspect_ratio,fps,resolution\n/videos/a.mp4,a cat,51.0,480,720,0.67,24.0,345600\n",
    );
    let source = read_source(&SourceRequest { source: folder.path.join("train.csv"), ..Default::default() }).unwrap();
    assert_eq!(rows(&source), [("/videos/a.mp4", Ok("a cat"))]);
    assert_eq!(source.rows[0].stated, Stated { frames: 51, height: 480, width: 720 });
}

#[test]
fn every_form_of_json_is_read() {
    let lines = "{\"video\": \"a.mp4\", \"caption\": \"one\"}\n\n{\"video\": \"b.mp4\"}\n";
    let list = r#"[{"file_path": "a.mp4", "text": "one", "type": "video"}, {"file_path": "b.PNG", "text": "two", "type": "image"},
        {"file_path": "c.mp4", "text": "three", "type": "image"}, {"file_path": "d.tiff", "text": "four", "type": "image"}]"#;
    let entries =
        r#"{"0": {"mp4": "a.mp4", "text": "one", "scene_start": false}, "1": {"mp4": "b.mp4", "text": null}}"#;
    let captions = r#"{"a.mp4": "one", "b.mp4": ["two", "three"]}"#;
    let read = |name: &str, text: &str| Folder::new().with(name, text).read();
    assert_eq!(rows(&read("metadata.jsonl", lines)), [("a.mp4", Ok("one")), ("b.mp4", Err(CaptionFault::Missing))]);
    let source = read("metadata.json", list);
    let expected = [("a.mp4", Ok("one")), ("b.PNG", Ok("two")), ("c.mp4", Ok("three")), ("d.tiff", Ok("four"))];
    assert_eq!(rows(&source), expected);
    let is_excluded = |row: &ClipRow| matches!(row.excluded, Some(ExclusionReason::NotAVideo { .. }));
    assert_eq!(source.rows.iter().map(is_excluded).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!(rows(&read("metadata.json", entries)), [("a.mp4", Ok("one")), ("b.mp4", Err(CaptionFault::Missing))]);
    let expected = [("a.mp4", Ok("one")), ("b.mp4", Ok("two")), ("b.mp4", Ok("three"))];
    assert_eq!(rows(&read("captions.json", captions)), expected);
}

#[test]
fn captions_of_segments_belong_to_one_clip() {
    let lines = "{\"video\": \"a.mp4\", \"segments\": [\"a cat\", \"it sleeps \"], \"caption\": \"a cat sleeps\"}\n\
                 {\"video\": \"b.mp4\", \"segments\": [\"a dog\", \" \"]}\n";
    let source = Folder::new().with("metadata.jsonl", lines).read();
    assert_eq!(rows(&source), [("a.mp4", Ok("a cat\nit sleeps")), ("b.mp4", Err(CaptionFault::Empty))]);
    assert_eq!(source.rows[0].segments, ["a cat", "it sleeps"]);
    assert!(source.rows[1].segments.is_empty());
}

#[test]
fn only_the_lines_of_json_that_are_not_utf8_lose_their_captions() {
    let text = b"{\"video\": \"a.mp4\", \"caption\": \"caf\xe9\"}\n{\"video\": \"b.mp4\", \"caption\": \"two\"}\n";
    let source = Folder::new().with("metadata.jsonl", text).read();
    assert_eq!(rows(&source), [("a.mp4", Err(not_utf8(text))), ("b.mp4", Ok("two"))]);
}

#[test]
fn a_table_that_pyarrow_wrote_is_read() {
    let bytes =
        fs::read(Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/videos/metadata.parquet"));
    let source = Folder::new().with("metadata.parquet", bytes.unwrap()).read();
    let expected = [("a.mp4", Ok("a cat, \"sleeping\"\non a mat")), ("sub/b.mp4", Err(CaptionFault::Missing))];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.rows[0].stated, Stated { frames: 60, height: 48, width: 64 });
    assert_eq!(Folder::new().with("metadata.parquet", "PAR1").fails().code, ErrorCode::InvalidDataset);
}

#[test]
fn the_user_can_name_columns_and_a_wrong_name_lists_the_existing_ones() {
    let folder = Folder::new().with("metadata.csv", "clip_name,long_caption,short_caption\na.mp4,long,short\n");
    let with = |video: &str, caption: &str| {
        let named = |name: &str| Some(name.to_owned());
        read_source(&SourceRequest {
            video_column: named(video),
            caption_columns: named(caption).into_iter().collect(),
            ..folder.request()
        })
    };
    assert_eq!(rows(&with("clip_name", "short_caption").unwrap()), [("a.mp4", Ok("short"))]);
    let failure = with("clip_name", "shortcaption").unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    assert!(failure.why.contains("clip_name, long_caption, short_caption"), "{failure}");
    assert!(failure.fix.contains("--caption-column short_caption"), "{failure}");
    assert!(folder.fails().why.contains("clip_name, long_caption"));
}

#[test]
fn a_detected_layout_can_be_overridden() {
    let folder = Folder::new()
        .with("metadata.csv", "video,caption\na.mp4,of the table\n")
        .with("prompts.txt", "of the list\n")
        .with("videos.txt", "a.mp4\n")
        .with("a.mp4", "")
        .with("a.txt", "of the file");
    let caption =
        |layout| rows(&read_source(&SourceRequest { layout, ..folder.request() }).unwrap())[0].1.unwrap().to_owned();
    assert_eq!(caption(None), "of the table");
    assert_eq!(caption(Some(Layout::Table)), "of the table");
    assert_eq!(caption(Some(Layout::Lists)), "of the list");
    assert_eq!(caption(Some(Layout::Pairs)), "of the file");
    assert_eq!(folder.read().notes.len(), 1);
}

#[test]
fn paths_of_a_table_start_at_the_given_folder() {
    let folder = Folder::new().with("tables/metadata.csv", "video,caption\na.mp4,one\n").with("videos/a.mp4", "");
    let request = SourceRequest {
        source: folder.path.join("tables"),
        root: Some(folder.path.join("videos")),
        ..Default::default()
    };
    assert_eq!(read_source(&request).unwrap().rows[0].path, folder.path.join("videos/a.mp4"));
}

#[test]
fn sources_that_are_no_data_sets_are_refused() {
    let empty = "video,caption\n";
    for folder in [
        Folder::new(),
        Folder::new().with("a.png", "").with("b.jpg", ""),
        Folder::new().with("a.tiff", "").with("a.txt", "only a picture that cannot be read"),
        Folder::new().with("a.txt", "only text"),
        Folder::new().with("metadata.csv", empty),
        Folder::new().with("metadata.csv", ""),
        Folder::new().with("metadata.csv", "video,caption\na.mp4,one,two\n"),
        Folder::new().with("metadata.jsonl", "{\"video\": \"a.mp4\", \"caption\"\n"),
        Folder::new().with("metadata.jsonl", ""),
        Folder::new().with("metadata.jsonl", "{\"format\": \"vidtui-manifest\", \"schema\": 1}\n"),
        Folder::new().with("metadata.json", "[1, 2]"),
        Folder::new().with("metadata.json", "7"),
        Folder::new().with("metadata.json", "{\"a.mp4\": 7}"),
        Folder::new().with("videos.txt", "").with("prompts.txt", ""),
    ] {
        assert_eq!(folder.fails().code, ErrorCode::InvalidDataset, "{}", folder.fails());
    }
    let file = Folder::new().with("a.mp4", "").with("notes.md", "");
    for name in ["a.mp4", "notes.md"] {
        let request = SourceRequest { source: file.path.join(name), ..Default::default() };
        assert_eq!(read_source(&request).unwrap_err().code, ErrorCode::InvalidDataset);
    }
    let layout = Some(Layout::Frames);
    let no_frames = SourceRequest { source: file.path.clone(), layout, ..Default::default() };
    assert_eq!(read_source(&no_frames).unwrap_err().code, ErrorCode::InvalidDataset);
    let none = SourceRequest { source: "/nonesuch".into(), ..Default::default() };
    assert_eq!(read_source(&none).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn captions_get_the_scene_tokens_that_the_flags_of_a_table_name() {
    let listing = |text: &str| Folder::new().with("a.mp4", "").with("t.json", text);
    let read = |text: &str| {
        let folder = listing(text);
        let source = read_source(&SourceRequest { source: folder.path.join("t.json"), ..SourceRequest::default() });
        let row = source.unwrap().rows.remove(0);
        (row.segments, row.caption, row.excluded)
    };
    let (segments, caption, excluded) = read(
        r#"[{"video": "a.mp4", "segments": ["a", "b", "c"], "scene_start": [false, true, false], "scene_end": [true, false, true]}]"#,
    );
    assert_eq!(segments, ["a<end_scene>", "<start_scene>b", "c<end_scene>"]);
    assert_eq!((caption.as_deref(), excluded), (Ok("a<end_scene>\n<start_scene>b\nc<end_scene>"), None));
    // The table of ttt-video-dit's text script: one clip of 3 s in each entry.
    let (segments, caption, excluded) =
        read(r#"{"0": {"mp4": "a.mp4", "text": "a cat", "scene_start": true, "scene_end": true}}"#);
    assert_eq!((segments.len(), caption.as_deref(), excluded), (0, Ok("<start_scene>a cat<end_scene>"), None));
    let (_, caption, excluded) = read(r#"[{"video": "a.mp4", "text": "a cat", "scene_start": false}]"#);
    assert_eq!((caption.as_deref(), excluded), (Ok("a cat"), None));
    for wrong in [r#""scene_start": [true, false]"#, r#""scene_end": "maybe""#] {
        let (_, _, excluded) = read(&format!(r#"[{{"video": "a.mp4", "text": "a cat", {wrong}}}]"#));
        assert!(matches!(excluded, Some(ExclusionReason::Unsupported { .. })), "{wrong}: {excluded:?}");
    }
}

/// The names of the clips of a table that meet conditions.
fn left(folder: &Folder, table: &str, conditions: &str) -> Result<Vec<String>, Failure> {
    let filter = Some(conditions.parse().unwrap());
    let request = SourceRequest { source: folder.path.join(table), filter, ..SourceRequest::default() };
    Ok(read_source(&request)?.rows.into_iter().map(|row| row.name).collect())
}

#[test]
fn conditions_leave_out_rows_of_every_kind_of_table() {
    let csv = "path,text,aesthetic,motion\na.mp4,one,5.5,1\nb.mp4,two,,2\nc.mp4,three,4,nan\nd.mp4,four, 6 ,0.25\n";
    let json = r#"[{"path": "a.mp4", "text": "one", "aesthetic": 5.5, "motion": 1},
        {"path": "b.mp4", "text": "two", "motion": 2},
        {"path": "c.mp4", "text": "three", "aesthetic": "4", "motion": null},
        {"path": "d.mp4", "text": "four", "aesthetic": "6", "motion": 0.25}]"#;
    let lines = json.trim_matches(['[', ']']).replace("},", "}");
    let folder = Folder::new().with("a.csv", csv).with("a.json", json).with("a.jsonl", lines);
    let folder = folder.with("a.tsv", csv.replace(',', "\t"));
    for table in ["a.csv", "a.tsv", "a.json", "a.jsonl"] {
        let left = |conditions| left(&folder, table, conditions).unwrap();
        assert_eq!(left("aesthetic >= 5"), ["a.mp4", "d.mp4"], "{table}");
        assert_eq!(left("aesthetic < 100 and motion > 0.5"), ["a.mp4"], "{table}");
        // Neither a missing number nor NaN passes, whatever is compared.
        assert_eq!(left("not motion > 1.5"), ["a.mp4", "d.mp4"], "{table}");
    }
}

#[test]
fn each_condition_is_counted_and_the_numbers_of_all_rows_are_kept() {
    let csv = "path,text,aesthetic,tag\na.mp4,one,5.5,1\nb.mp4,two,,2\nc.mp4,three,4,x\n";
    let folder = Folder::new().with("metadata.csv", csv);
    let filter = Some("aesthetic > 4 and aesthetic != 5.5".parse().unwrap());
    let failure = read_source(&SourceRequest { filter, ..folder.request() }).unwrap_err();
    assert!(failure.why.contains("aesthetic != 5.5 leaves out 2 clips, 1 for a missing number"), "{failure}");
    let filter = Some("aesthetic > 4 and num_frames > 1".parse().unwrap());
    let source = read_source(&SourceRequest { filter, ..folder.request() }).unwrap();
    let SourceFields { columns, conditions, left_out, kept } = source.fields;
    assert_eq!((left_out, conditions[0].left_out, conditions[0].missing, kept.len()), (2, 2, 1, 0));
    // The check measures the frames later. The column `tag` has a text.
    assert!(conditions[1].is_measured);
    assert_eq!(columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["aesthetic"]);
    assert!(columns[0].numbers[1].is_nan() && columns[0].numbers[2] == 4.0);
}

#[test]
fn a_table_with_several_columns_of_captions_has_a_clip_for_each_caption() {
    let csv = "path,short,long,motion,tags\na.mp4,one,a long one,2.0,\"x, y\"\nb.mp4,,a long two,,\nc.mp4,,,,z\n";
    let folder = Folder::new().with("metadata.csv", csv);
    let caption_columns = vec!["short".to_owned(), "long".into()];
    let template = Some("{caption} {motion:.1f} {tags} {fps}".parse().unwrap());
    let source = read_source(&SourceRequest { caption_columns, template, ..folder.request() }).unwrap();
    let expected = [
        ("a.mp4", Ok("one")),
        ("a.mp4", Ok("a long one")),
        ("b.mp4", Ok("a long two")),
        ("c.mp4", Err(CaptionFault::Empty)),
        ("c.mp4", Err(CaptionFault::Empty)),
    ];
    assert_eq!(rows(&source), expected);
    assert_eq!(source.fields.kept, ["motion", "tags"]);
    let text = |text: &str| FieldValue::Text(text.into());
    assert_eq!(source.rows[1].kept, [text("2.0"), text("x, y")]);
    assert_eq!(source.rows[2].kept, [FieldValue::Missing, FieldValue::Missing]);
    let caption_columns = vec!["short".to_owned(), "lung".into()];
    let unknown = read_source(&SourceRequest { caption_columns, ..folder.request() }).unwrap_err();
    assert!(unknown.fix.contains("--caption-column long"), "{unknown}");
    let caption_columns = vec!["short".to_owned()];
    let template = Some("{caption} {mution}".parse().unwrap());
    let unknown = read_source(&SourceRequest { caption_columns, template, ..folder.request() }).unwrap_err();
    assert!(unknown.fix.contains("motion"), "{unknown}");
}

#[test]
fn conditions_on_texts_and_on_unknown_columns_are_refused() {
    let folder = Folder::new().with("metadata.csv", "path,text,aesthetic\na.mp4,one,5\nb.mp4,two,good\n");
    let text = left(&folder, "metadata.csv", "aesthetic > 1").unwrap_err();
    assert!(text.why.contains("metadata.csv line 3") && text.why.contains("'good'"), "{text}");
    assert!(left(&folder, "metadata.csv", "text > 1").is_err());
    let unknown = left(&folder, "metadata.csv", "astetic > 1").unwrap_err();
    assert!(unknown.fix.contains("did you mean aesthetic"), "{unknown}");
    // A folder of videos has measured numbers only.
    let folder = Folder::new().with("a.mp4", "").with("a.txt", "one");
    assert!(left(&folder, "", "motion > 1").is_err());
    assert_eq!(left(&folder, "", "height > 1").unwrap(), ["a.mp4"]);
}
