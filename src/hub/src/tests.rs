//! Tests with a server in this process that behaves like the Hub and its CDN.

use super::*;
use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure};
use hash::{Expected, Hash};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const MODEL: &str = "zai-org/CogVideoX-5b";

/// A request that the server received.
#[derive(Debug, Clone)]
struct Request {
    path: String,
    headers: BTreeMap<String, String>,
}

/// The behaviour of the servers, and the requests that they received.
#[derive(Default)]
struct World {
    files: BTreeMap<String, Vec<u8>>,
    /// The bytes after which each of the next file transfers is cut off; the last entry is used first.
    cuts: Vec<usize>,
    ignores_ranges: bool,
    /// Whether the first byte of each file is changed.
    damage: bool,
    /// The error of the next requests to the Hub: status, `X-Error-Code`, and the number of requests.
    refuses: Option<(u16, &'static str, usize)>,
    to_hub: Vec<Request>,
    to_cdn: Vec<Request>,
}

/// The Hub and its CDN, on two ports.
struct Hub {
    endpoint: String,
    world: Arc<Mutex<World>>,
    keep: tempfile::TempDir,
}

impl Hub {
    fn new() -> Self {
        let large: Vec<u8> = (0..700_001_u32).map(|n| (n * 7 / 3) as u8).collect();
        let files = BTreeMap::from([
            ("model_index.json".to_owned(), b"{}".to_vec()),
            ("README.md".to_owned(), b"read me".to_vec()),
            ("vae/config.json".to_owned(), b"{\"in\": 3}".to_vec()),
            ("vae/model.safetensors".to_owned(), large),
        ]);
        let world = Arc::new(Mutex::new(World { files, ..World::default() }));
        let cdn = serve(world.clone(), |world, request, stream| {
            world.lock().unwrap().to_cdn.push(request.clone());
            send_file(world, request, stream);
        });
        let endpoint = serve(world.clone(), move |world, request, stream| {
            let mut locked = world.lock().unwrap();
            locked.to_hub.push(request.clone());
            if let Some((status, code, times)) = locked.refuses.filter(|(.., times)| *times > 0) {
                locked.refuses = Some((status, code, times - 1));
                let _ = write!(stream, "HTTP/1.1 {status} X\r\nx-error-code: {code}\r\ncontent-length: 0\r\n\r\n");
            } else if request.path.starts_with("/api/") {
                let listing = listing(&locked.files);
                let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{listing}", listing.len());
            } else if request.path.ends_with(".safetensors") {
                let _ =
                    write!(stream, "HTTP/1.1 302 X\r\nlocation: {cdn}{}\r\ncontent-length: 0\r\n\r\n", request.path);
            } else {
                drop(locked);
                send_file(world, request, stream);
            }
        });
        Self { endpoint, world, keep: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> Utf8PathBuf {
        Utf8Path::from_path(self.keep.path()).unwrap().join("hub")
    }

    fn settings(&self) -> Settings {
        let settings = Settings::new(&self.endpoint, Token::new("hf_secret"), self.cache());
        Settings { pause: Duration::from_millis(1), retries: 2, silent_limit: Duration::from_secs(60), ..settings }
    }

    fn fetch(&self, files: &[&str]) -> Result<Fetched, Failure> {
        fetch(&request(files), &self.settings(), &mut |_| ControlFlow::Continue(()))
    }

    fn change(&self, change: impl FnOnce(&mut World)) {
        change(&mut self.world.lock().unwrap());
    }

    fn model(&self) -> Utf8PathBuf {
        Cache::new(&self.cache(), Kind::Model, MODEL).folder()
    }

    fn large(&self) -> Vec<u8> {
        self.world.lock().unwrap().files["vae/model.safetensors"].clone()
    }

    /// Returns the ranges that were requested from the CDN.
    fn ranges(&self) -> Vec<Option<String>> {
        self.world.lock().unwrap().to_cdn.iter().map(|request| request.headers.get("range").cloned()).collect()
    }
}

fn request(files: &[&str]) -> FetchRequest {
    let files = files.iter().map(|file| (*file).to_owned()).collect();
    FetchRequest { model: MODEL.into(), revision: "main".into(), files, ..FetchRequest::default() }
}

fn digits(expected: Expected, bytes: &[u8]) -> String {
    let mut hash = Hash::new(&expected, bytes.len() as u64);
    hash.update(bytes);
    hash.finish()
}

fn listing(files: &BTreeMap<String, Vec<u8>>) -> String {
    let sibling = |(name, bytes): (&String, &Vec<u8>)| {
        let git = digits(Expected::Git(String::new()), bytes);
        let mut file = serde_json::json!({ "rfilename": name, "size": bytes.len(), "blobId": git });
        if name.ends_with(".safetensors") {
            let sha256 = digits(Expected::Sha256(String::new()), bytes);
            file["lfs"] = serde_json::json!({ "sha256": sha256, "size": bytes.len() });
        }
        file
    };
    serde_json::json!({ "sha": COMMIT, "siblings": files.iter().map(sibling).collect::<Vec<_>>() }).to_string()
}

fn send_file(world: &Mutex<World>, request: &Request, stream: &mut TcpStream) {
    let mut world = world.lock().unwrap();
    let name = request.path.split_once(&format!("/resolve/{COMMIT}/")).map(|(_, name)| name).unwrap();
    let mut bytes = world.files[name].clone();
    if world.damage {
        bytes[0] ^= 1;
    }
    let cut = world.cuts.pop();
    let from = request.headers.get("range").filter(|_| !world.ignores_ranges);
    let from = from.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    drop(world);
    let all = bytes.len();
    let body = &bytes[from.unwrap_or(0)..];
    let head = match from {
        Some(from) => format!("206 X\r\ncontent-range: bytes {from}-{}/{all}", all - 1),
        None => "200 OK".to_owned(),
    };
    let _ = write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())]);
}

/// Starts a server on a free port that answers one request per connection. Returns its URL.
fn serve(
    world: Arc<Mutex<World>>,
    answer: impl Fn(&Mutex<World>, &Request, &mut TcpStream) + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(first)) = lines.next() else { continue };
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let head = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
            let headers = head.filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_lowercase(), value.trim().to_owned()))
            });
            let request = Request { path, headers: headers.collect() };
            answer(&world, &request, &mut stream);
        }
    });
    url
}

#[test]
fn a_model_is_downloaded_into_the_layout_that_python_reads() {
    let hub = Hub::new();
    let fetched = hub.fetch(&[]).unwrap();
    assert_eq!((fetched.files, fetched.downloaded, fetched.commit.as_str()), (3, 3, COMMIT));
    let model = hub.model();
    assert_eq!(fetched.folder, model.join("snapshots").join(COMMIT));
    assert_eq!(fs::read(fetched.folder.join("vae/model.safetensors")).unwrap(), hub.large());
    assert!(!fetched.folder.join("README.md").exists());
    let link = fs::read_link(fetched.folder.join("vae/model.safetensors")).unwrap();
    let sha256 = digits(Expected::Sha256(String::new()), &hub.large());
    assert_eq!(link.to_str(), Some(format!("../../../blobs/{sha256}").as_str()));
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    assert!(fs::read_dir(model.join("blobs")).unwrap().all(|blob| blob.unwrap().path().extension().is_none()));
    // A second call downloads nothing.
    let requested = hub.world.lock().unwrap().to_cdn.len();
    assert_eq!(hub.fetch(&[]).unwrap(), Fetched { downloaded: 0, ..fetched });
    assert_eq!(hub.world.lock().unwrap().to_cdn.len(), requested);
}

#[test]
fn the_token_is_sent_to_the_hub_and_not_to_its_cdn_or_logs() {
    let hub = Hub::new();
    hub.fetch(&[]).unwrap();
    let world = hub.world.lock().unwrap();
    assert!(world.to_hub.iter().all(|request| request.headers["authorization"] == "Bearer hf_secret"));
    assert!(!world.to_cdn.is_empty());
    assert!(world.to_cdn.iter().all(|request| !request.headers.contains_key("authorization")));
    assert!(!format!("{:?}", hub.settings()).contains("secret"));
}

#[test]
fn a_download_that_is_cut_off_continues_where_it_stopped() {
    let hub = Hub::new();
    // Three interruptions in one call, which is more than the retries without progress.
    hub.change(|world| world.cuts = vec![1, 300_000, 100_000, 65_536]);
    hub.fetch(&["vae/model.safetensors"]).unwrap();
    let starts = ["bytes=65536-", "bytes=165536-", "bytes=465536-", "bytes=465537-"];
    assert_eq!(hub.ranges()[1..], starts.map(|start| Some(start.to_owned())));
}

#[test]
fn a_later_call_continues_an_interrupted_download() {
    let hub = Hub::new();
    let stopped = fetch(&request(&["vae"]), &hub.settings(), &mut |progress| match progress.done {
        0..300_000 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert_eq!(stopped.unwrap_err().code, ErrorCode::Cancelled);
    assert!(!hub.model().join("snapshots").exists());
    let left = fs::read_dir(hub.model().join("blobs")).unwrap().filter_map(|blob| {
        let blob = blob.unwrap();
        (blob.path().extension()? == "incomplete").then(|| blob.metadata().unwrap().len())
    });
    let left: Vec<u64> = left.collect();
    let fetched = hub.fetch(&["vae"]).unwrap();
    assert_eq!(fs::read(fetched.folder.join("vae/model.safetensors")).unwrap(), hub.large());
    assert_eq!(hub.ranges().last().unwrap(), &Some(format!("bytes={}-", left[0])));
}

#[test]
fn a_server_without_ranges_is_downloaded_from_the_start() {
    let hub = Hub::new();
    hub.change(|world| (world.ignores_ranges, world.cuts) = (true, vec![200_000]));
    let fetched = hub.fetch(&["vae"]).unwrap();
    assert_eq!(fs::read(fetched.folder.join("vae/model.safetensors")).unwrap(), hub.large());
}

#[test]
fn a_damaged_download_is_removed_and_downloaded_again() {
    let hub = Hub::new();
    hub.change(|world| world.damage = true);
    for file in ["vae/model.safetensors", "vae/config.json"] {
        let failure = hub.fetch(&[file]).unwrap_err();
        assert_eq!(failure.code, ErrorCode::DownloadDamaged, "{failure}");
    }
    assert_eq!(fs::read_dir(hub.model().join("blobs")).unwrap().count(), 0);
    hub.change(|world| world.damage = false);
    assert_eq!(hub.fetch(&["vae"]).unwrap().downloaded, 2);
}

#[test]
fn refusals_name_the_remedy() {
    let hub = Hub::new();
    let refused = |status, code, token: Option<&str>| {
        hub.change(|world| world.refuses = Some((status, code, 9)));
        let settings = Settings { token: token.and_then(Token::new), ..hub.settings() };
        fetch(&request(&[]), &settings, &mut |_| ControlFlow::Continue(())).unwrap_err()
    };
    let page = format!("{}/{MODEL}", hub.endpoint);
    for (status, code, token, expected, in_fix) in [
        (401, "GatedRepo", None, ErrorCode::PermissionDenied, "HF_TOKEN"),
        (403, "GatedRepo", Some("hf_secret"), ErrorCode::PermissionDenied, page.as_str()),
        (401, "", Some("hf_secret"), ErrorCode::PermissionDenied, "HF_TOKEN"),
        (403, "", None, ErrorCode::PermissionDenied, "HF_TOKEN"),
        (401, "RepoNotFound", None, ErrorCode::NotFound, page.as_str()),
        (404, "RepoNotFound", Some("hf_secret"), ErrorCode::NotFound, page.as_str()),
        (404, "RevisionNotFound", None, ErrorCode::NotFound, "tree/main"),
        (503, "", None, ErrorCode::HubFailed, "later"),
        (418, "", None, ErrorCode::HubFailed, "HF_ENDPOINT"),
    ] {
        let failure = refused(status, code, token);
        assert_eq!(failure.code, expected, "{status} {code}: {failure}");
        assert!(failure.fix.contains(in_fix), "{status} {code}: {failure}");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    // A request to a server that is busy for a moment is retried.
    hub.change(|world| world.refuses = Some((503, "", 2)));
    assert_eq!(hub.fetch(&[]).unwrap().files, 3);
}

#[test]
fn without_a_network_the_host_is_named() {
    let hub = Hub::new();
    // No server listens on this port. A free port could be that of another program meanwhile.
    let settings = Settings { endpoint: "http://127.0.0.1:1".into(), ..hub.settings() };
    let failure = fetch(&request(&[]), &settings, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::HubUnreachable, "{failure}");
    assert!(failure.what.contains("127.0.0.1:1"), "{failure}");
}

#[test]
fn a_model_in_the_cache_needs_no_network() {
    let hub = Hub::new();
    let fetched = hub.fetch(&["vae"]).unwrap();
    let settings = Settings { offline: true, endpoint: "http://127.0.0.1:1".into(), ..hub.settings() };
    let offline = |request| fetch(&request, &settings, &mut |_| ControlFlow::Continue(()));
    assert_eq!(offline(request(&[])).unwrap(), Fetched { downloaded: 0, ..fetched });
    let other = FetchRequest { revision: "other".into(), ..request(&[]) };
    assert_eq!(offline(other).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_disk_that_is_too_small_is_reported_before_the_download() {
    let hub = Hub::new();
    // A file of 4 EiB that is listed but never sent.
    let digits = "a".repeat(64);
    let listing = serde_json::json!({ "sha": COMMIT, "siblings": [
        { "rfilename": "big.safetensors", "lfs": { "sha256": digits, "size": 1_u64 << 62 } },
    ] });
    let text = listing.to_string();
    let endpoint = serve(hub.world.clone(), move |_, _, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    });
    let settings = Settings { endpoint, ..hub.settings() };
    let failure = fetch(&request(&[]), &settings, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::DiskFull, "{failure}");
}

#[test]
fn a_missing_file_is_reported_with_the_nearest_name() {
    let hub = Hub::new();
    let failure = hub.fetch(&["vae/confg.json"]).unwrap_err();
    assert_eq!(failure.code, ErrorCode::UnknownName);
    assert!(failure.fix.contains("vae/config.json"), "{failure}");
    assert_eq!(hub.fetch(&["*.json"]).unwrap().files, 2);
}

#[test]
fn two_downloads_of_the_same_file_do_not_mix() {
    let hub = Hub::new();
    let digits = digits(Expected::Sha256(String::new()), &hub.large());
    let lock = Cache::new(&hub.cache(), Kind::Model, MODEL).lock(&digits).unwrap();
    assert_eq!(hub.fetch(&["vae"]).unwrap_err().code, ErrorCode::AlreadyExists);
    drop(lock);
    hub.fetch(&["vae"]).unwrap();
}

#[test]
fn a_data_set_is_downloaded_with_its_videos_and_pictures_into_its_own_folder() {
    let hub = Hub::new();
    hub.change(|world| _ = world.files.insert("videos/a.mp4".into(), b"a video".to_vec()));
    let request = FetchRequest { kind: Kind::Dataset, model: "owner/clips".into(), ..request(&[]) };
    let fetched = fetch(&request, &hub.settings(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(fetched.files, 5);
    assert_eq!(fetched.folder, hub.cache().join(format!("datasets--owner--clips/snapshots/{COMMIT}")));
    assert_eq!(fs::read(fetched.folder.join("videos/a.mp4")).unwrap(), b"a video");
    let paths: Vec<String> = hub.world.lock().unwrap().to_hub.iter().map(|request| request.path.clone()).collect();
    assert!(paths[0].starts_with("/api/datasets/owner/clips/revision/main"), "{paths:?}");
    assert!(paths[1..].iter().all(|path| path.starts_with("/datasets/owner/clips/resolve/")), "{paths:?}");
    // The name of a model is not that of a data set.
    hub.change(|world| world.refuses = Some((404, "RepoNotFound", 1)));
    let failure = fetch(&request, &hub.settings(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(failure.code == ErrorCode::NotFound && failure.fix.contains("without --dataset"), "{failure}");
}

#[test]
fn names_that_are_not_of_models_are_refused() {
    let hub = Hub::new();
    for (model, revision) in
        [("CogVideoX", "main"), ("a/b/c", "main"), ("../b", "main"), ("a/..", "main"), (MODEL, ""), (MODEL, "a/../b")]
    {
        let request = FetchRequest { model: model.into(), revision: revision.into(), ..FetchRequest::default() };
        let failure = fetch(&request, &hub.settings(), &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidArgument, "{model} {revision}");
    }
    assert!(hub.world.lock().unwrap().to_hub.is_empty());
}

#[test]
fn settings_come_from_the_variables_that_python_reads() {
    let folder = tempfile::tempdir().unwrap();
    let home = Utf8Path::from_path(folder.path()).unwrap();
    let with = |variables: &[(&str, &str)]| {
        let variables: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Settings::from_environment(&|name| variables.get(name).cloned())
    };
    let home_only = with(&[("HOME", home.as_str())]).unwrap();
    assert_eq!(home_only.endpoint, "https://huggingface.co");
    assert_eq!((home_only.cache, home_only.token), (home.join(".cache/huggingface/hub"), None));
    fs::write(home.join("token"), "hf_file\n").unwrap();
    let all =
        with(&[("HOME", "/none"), ("HF_HOME", home.as_str()), ("HF_ENDPOINT", "https://hf-mirror.com/")]).unwrap();
    assert_eq!(
        (all.endpoint.as_str(), all.cache, all.token),
        ("https://hf-mirror.com", home.join("hub"), Token::new("hf_file"))
    );
    let named = with(&[("HF_HUB_CACHE", "/cache"), ("HF_TOKEN", "hf_named"), ("HF_HUB_OFFLINE", "1")]).unwrap();
    assert_eq!((named.cache.as_str(), named.token, named.offline), ("/cache", Token::new("hf_named"), true));
    assert_eq!(with(&[("HF_TOKEN", "a b"), ("HOME", "/")]).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(with(&[("HF_ENDPOINT", "hf-mirror.com"), ("HOME", "/")]).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(with(&[]).unwrap_err().code, ErrorCode::InvalidArgument);
}
