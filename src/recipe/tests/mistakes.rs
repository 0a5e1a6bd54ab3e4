//! The errors of recipes and curricula with a mistake: kind, keys and text.

use camino::Utf8Path;

const CONFIGS: &str = "../../tests/fixtures/configs";

#[test]
fn every_mistake_in_a_file_names_its_kind_and_key() {
    let folder = Utf8Path::new(CONFIGS).join("invalid");
    let mut files: Vec<_> = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
    files.retain(|path| path.extension() == Some("toml"));
    files.sort();
    assert!(files.len() > 40, "the fixtures have moved: {} files in {folder}", files.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../tests/fixtures/configs/invalid");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for path in files {
            let name = path.file_stem().unwrap_or_default();
            let error = match name.starts_with("curriculum") {
                true => recipe::Curriculum::load(&path, &[]).map(drop),
                false => recipe::load(&path, &[]).map(drop),
            }
            .expect_err(name);
            let text = format!("{:?} {}\n{error}", error.kind, error.keys.join(" "));
            insta::assert_snapshot!(name, text.replace(CONFIGS, "configs"));
        }
    });
}
