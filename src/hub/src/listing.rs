//! The files of a model or a data set at a revision, with their sizes and hashes.

use crate::client::{Client, RequestError, encoded};
use crate::hash::Expected;
use camino::{Utf8Component, Utf8Path};
use failure::{ErrorCode, Failure};
use serde::Deserialize;

/// The largest accepted list of files, in bytes.
const LARGEST: u64 = 64 << 20;

/// A model at a commit.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<ListedFile>,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// The path in the repository of the model.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The hash of the bytes.
    pub expected: Expected,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Requests the list of files from the Hub.
    pub(crate) fn request(client: &Client<'_>, revision: &str) -> Result<Self, RequestError> {
        // Encode slashes, because a slash in a branch name is part of the name.
        let revision = encoded(revision).replace('/', "%2F");
        let mut response = client.get(
            &format!("/api/{}/{}/revision/{revision}?blobs=true", client.kind.plural(), encoded(client.name)),
            0,
        )?;
        let text = response.body_mut().with_config().limit(LARGEST).read_to_string();
        let text = text.map_err(|error| client.broken(&error.into_io()))?;
        Self::read(client.name, &text).map_err(RequestError::Lasting)
    }

    fn read(model: &str, text: &str) -> Result<Self, Failure> {
        let bad = |why: String| {
            let fix = "check HF_ENDPOINT: a mirror must answer like https://huggingface.co";
            Failure::new(ErrorCode::HubFailed, format!("cannot read the list of files of {model}"), why, fix)
        };
        let answer: Answer = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if answer.sha.len() != 40 || !answer.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad(format!("'{}' is not a commit", answer.sha)));
        }
        let file = |sibling: Sibling| {
            let path = sibling.rfilename;
            // The name decides where the file is written, so reject names that leave the folder.
            if path.is_empty()
                || !Utf8Path::new(&path).components().all(|part| matches!(part, Utf8Component::Normal(_)))
            {
                return Err(bad(format!("the name '{path}' leads outside the folder of the model")));
            }
            let (expected, size) = match (sibling.lfs, sibling.blob_id, sibling.size) {
                (Some(lfs), ..) => (Expected::Sha256(lfs.sha256.to_lowercase()), lfs.size),
                (None, Some(id), Some(size)) => (Expected::Git(id.to_lowercase()), size),
                _ => return Err(bad(format!("{path} is listed without its size or hash"))),
            };
            if !expected.is_valid() {
                return Err(bad(format!("the hash of {path} is '{}'", expected.digits())));
            }
            Ok(ListedFile { path, size, expected })
        };
        let files = answer.siblings.into_iter().map(file).collect::<Result<Vec<_>, _>>()?;
        // Callers add the sizes.
        if files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size)).is_none() {
            return Err(bad("the sum of the sizes of its files overflows".into()));
        }
        Ok(Self { commit: answer.sha, files })
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_folder_hashes_that_are_paths_and_sizes_that_cannot_be_are_refused() {
        let listing = |name: &str, id: &str| {
            let sha = "0".repeat(40);
            Listing::read(
                "a/b",
                &format!(r#"{{"sha":"{sha}","siblings":[{{"rfilename":"{name}","size":1,"blobId":"{id}"}}]}}"#),
            )
        };
        let id = "a".repeat(40);
        assert!(listing("vae/config.json", &id).is_ok());
        for (name, id) in
            [("../x", id.as_str()), ("/etc/x", &id), ("a/../../x", &id), ("", &id), ("x", "../x"), ("x", "")]
        {
            assert_eq!(listing(name, id).unwrap_err().code, ErrorCode::HubFailed, "{name} {id}");
        }
        let sized = |size: u64| {
            let (sha, id) = ("0".repeat(40), "a".repeat(40));
            let file = |name: &str| format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{id}"}}"#);
            Listing::read("a/b", &format!(r#"{{"sha":"{sha}","siblings":[{},{}]}}"#, file("x"), file("y")))
        };
        assert!(sized(1 << 62).is_ok());
        assert_eq!(sized(1 << 63).unwrap_err().code, ErrorCode::HubFailed, "the sum overflows");
        assert!(Listing::read("a/b", r#"{"sha":"main","siblings":[]}"#).is_err());
        assert!(Listing::read("a/b", "<html>").is_err());
    }
}
