//! Tests how `tests/oracle` finds the folder of recorded numbers that `VIDTUI_ORACLE` names, and weight files in a
//! folder.

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;

use camino::Utf8Path;

#[test]
fn oracle_folders_are_found_from_the_crate_and_the_workspace_and_others_are_refused() {
    let keep = tempfile::tempdir().unwrap();
    let place = Utf8Path::from_path(keep.path()).unwrap();
    let (here, workspace) = (place.join("here"), place.join("workspace"));
    for folder in [here.join("mine/ttt"), workspace.join("mine/ttt"), workspace.join("theirs/cogvideox")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let find = |named: &str| oracle::find(named, &[&here, &workspace]);
    assert_eq!(find("mine"), Ok(here.join("mine")));
    assert_eq!(find("theirs"), Ok(workspace.join("theirs")));
    assert_eq!(find(workspace.join("mine").as_str()), Ok(workspace.join("mine")));
    let refused = |named: &str| find(named).unwrap_err().replace(place.as_str(), "");
    assert!(refused("mime").ends_with("/here/mime, /workspace/mime"), "{}", refused("mime"));
    assert!(refused(place.join("nowhere").as_str()).ends_with(" /nowhere"));
    assert!(find("").is_err());
}

#[test]
fn oracle_weights_are_those_of_the_index_and_not_a_variant_beside_it() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let names = || oracle::weight_files(folder).iter().map(|f| f.file_name().unwrap().to_owned()).collect::<Vec<_>>();
    std::fs::write(folder.join("diffusion_pytorch_model.fp16.safetensors"), "").unwrap();
    assert_eq!(names(), ["diffusion_pytorch_model.safetensors"]);
    let index = r#"{ "weight_map": { "a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors" } }"#;
    std::fs::write(folder.join("diffusion_pytorch_model.safetensors.index.json"), index).unwrap();
    assert_eq!(names(), ["1.safetensors", "2.safetensors"]);
}
