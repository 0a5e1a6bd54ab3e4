//! Tests of encoding into a store: crashes, take-overs, full disks, changed manifests.

use super::folder::check_no_encode_within;
use super::*;
use crate::{Clip, ClipManifest, ManifestHeader};
use camino::{Utf8Path, Utf8PathBuf};
use proptest::prelude::*;
use rundir::{ErrorCode, Failure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weights::Dtype;

/// A clock that advances only when a test advances it.
#[derive(Debug, Default)]
pub(super) struct FakeClock(Mutex<Duration>);

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// A disk with a limited number of free bytes. A write that does not fit is written in part.
#[derive(Debug)]
struct SmallDisk(Mutex<usize>);

impl Disk for SmallDisk {
    fn write_all_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut left = self.0.lock().unwrap();
        let fits = bytes.len().min(*left);
        *left -= fits;
        file.write_all_at(&bytes[..fits], at)?;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

const EXPIRY: Duration = Duration::from_secs(30);

pub(super) fn timing(clock: &Arc<FakeClock>) -> Timing {
    let clock: Arc<dyn Clock> = clock.clone();
    // Six latents of 32 bytes to a shard.
    Timing { expiry: EXPIRY, heartbeat: None, clock, disk: Arc::new(LocalDisk), shard: 200, range: Some(3) }
}

fn full_after(bytes: usize, clock: &Arc<FakeClock>) -> Timing {
    Timing { disk: Arc::new(SmallDisk(Mutex::new(bytes))), ..timing(clock) }
}

pub(super) fn holder(run: &str) -> Holder {
    Holder { run: run.into(), node: "node01".into(), pid: 7 }
}

pub(crate) fn spec() -> StoreSpec {
    StoreSpec::new(
        FrameSpec { mode: "head".into(), count: 5, fps: Some(8.0), stride: 1, seed: 3 },
        PictureSpec { width: 16, height: 16, crop: "center".into(), colour_rule: "1".into() },
        VaeSpec { name: "vae".into(), identity: "v1".into(), channels: 1, scaling_factor: 0.7, dtype: "bf16".into() },
        TextSpec {
            name: "t5".into(),
            tokenizer: "t1".into(),
            encoder: "e1".into(),
            len: 2,
            dim: 2,
            dtype: "bf16".into(),
        },
    )
}

pub(super) fn manifest(ids: &[usize]) -> ClipManifest {
    let clip = |n: &usize| Clip {
        id: format!("clips/{n}.mp4"),
        path: format!("/videos/{n}.mp4").into(),
        // Clip n with n % 3 = 2 has the caption of clip n - 1.
        caption: format!("caption {}", n - usize::from(n % 3 == 2)),
        content: format!("content {n}"),
        ..Clip::default()
    };
    ClipManifest { header: ManifestHeader::default(), clips: ids.iter().map(clip).collect() }
}

pub(super) fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
    (keep, folder)
}

/// Returns the shape and bytes of an item: they depend on its key alone.
fn encoded(item: &Item) -> (Vec<usize>, Vec<u8>) {
    let shape = if item.work.kind() == ItemKind::Text { vec![2, 2] } else { vec![2, 2, 2, 2] };
    let len = 2 * shape.iter().product::<usize>();
    (shape, item.key.bytes().cycle().take(len).collect())
}

fn commit(range: &mut Range, item: &Item) -> Result<Held, Failure> {
    let (shape, bytes) = encoded(item);
    range.commit(item, &[0.0, 0.125], &[NewTensor { role: "", dtype: Dtype::BF16, shape: &shape, bytes: &bytes }])
}

/// Encodes the remaining items and finishes; returns the number of encoded items.
pub(super) fn work(queue: &Queue) -> Result<usize, Failure> {
    let mut encoded = 0;
    for kind in [ItemKind::Text, ItemKind::Latent] {
        loop {
            match queue.claim(kind)? {
                Claim::Done => break,
                Claim::Wait => queue.timing.clock.sleep(Duration::from_secs(1)),
                Claim::Range(mut range) => {
                    for item in range.items().to_vec() {
                        encoded += 1;
                        assert_eq!(commit(&mut range, &item)?, Held::Mine);
                    }
                    assert_eq!(range.finish()?, Held::Mine);
                }
            }
        }
    }
    Ok(encoded)
}

pub(super) fn finish(queue: &Queue) -> Result<QueueFinish, Failure> {
    queue.finish(&mut |_| ControlFlow::Continue(()))
}

/// Encodes a manifest without faults; returns the plan and the number of items that were encoded.
pub(super) fn encode(data: &Utf8Path, manifest: &ClipManifest, spec: &StoreSpec) -> (Plan, usize) {
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(data, manifest, spec, Quarantined::Skip).unwrap();
    let queue = Queue::create(data, &plan, &holder("a"), timing(&clock)).unwrap();
    let count = work(&queue).unwrap();
    assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
    (plan, count)
}

/// Returns the files of a folder and their bytes.
pub(super) fn files(data: &Utf8Path) -> BTreeMap<String, Vec<u8>> {
    let entries = data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    let read = |path: Utf8PathBuf| {
        let bytes = if path.is_dir() { b"folder".to_vec() } else { fs::read(&path).unwrap() };
        (path.file_name().unwrap().to_owned(), bytes)
    };
    entries.map(read).collect()
}

fn lines(data: &Utf8Path) -> (Head, Vec<Line>) {
    let mut lines = Vec::new();
    let head = read_index(data, |_, line| {
        lines.push(line);
        Ok(())
    });
    (head.unwrap(), lines)
}

#[test]
fn a_clip_whose_bucket_changes_is_encoded_again_and_no_other() {
    let (_keep, data) = temp();
    let entry = |frames| recipe::BucketSpec { frames, height: Some(16), width: Some(16), ..Default::default() };
    let with = |frames: &[usize]| {
        let list = frames.iter().copied().map(entry).collect();
        let mut spec = spec();
        (spec.frames.count, spec.picture.height, spec.picture.width) = (0, 0, 0);
        StoreSpec { buckets: Some(BucketsSpec { rule: recipe::BucketRule::List, list }), ..spec }
    };
    let assigned = |frames: [usize; 3]| {
        let mut manifest = manifest(&[1, 2, 3]);
        for (clip, frames) in manifest.clips.iter_mut().zip(frames) {
            clip.bucket = Some(recipe::Bucket { frames, height: 16, width: 16 });
        }
        manifest
    };
    encode(&data, &assigned([5, 9, 5]), &with(&[5, 9]));
    let (_, before) = lines(&data);
    assert_eq!(before.iter().map(|line| &line.bucket[..]).collect::<Vec<_>>(), ["5x16x16", "9x16x16", "5x16x16"]);
    assert_eq!(before[0].latent_key, spec().latent_key("content 1"), "the key of an encode of this size alone");
    let (plan, count) = encode(&data, &assigned([5, 13, 5]), &with(&[5, 13]));
    assert_eq!((plan.reuse, plan.new, count), (2, 0, 1));
    assert_eq!(plan.stale, [("clips/2.mp4".to_owned(), "buckets changed".to_owned())]);
    let (_, after) = lines(&data);
    assert_eq!((&after[1].bucket[..], &after[0], &after[2]), ("13x16x16", &before[0], &before[2]));
}

#[test]
fn a_store_holds_every_clip_in_the_order_of_the_manifest_and_each_caption_once() {
    let (_keep, data) = temp();
    let (plan, count) = encode(&data, &manifest(&[4, 1, 2, 3, 5, 9, 8]), &spec());
    // Captions 4, 1, 1, 3, 4, 9, 7, and the empty one.
    assert_eq!((plan.new, plan.count(ItemKind::Text), plan.count(ItemKind::Latent), count), (7, 6, 7, 13));
    let names: Vec<String> = files(&data).into_keys().collect();
    let wanted = ["latents-00000.safetensors", "latents-00001.safetensors", "texts-00000.safetensors"];
    assert_eq!(names, [&["dataset.toml", "index.jsonl"], &wanted[..]].concat());
    let (head, lines) = lines(&data);
    assert_eq!((head.clips, head.spec), (7, spec().identity()));
    assert_eq!(lines.iter().map(|line| line.id.as_str()).collect::<Vec<_>>()[..2], ["clips/4.mp4", "clips/1.mp4"]);
    assert_eq!(lines[1].text, lines[2].text);
    assert_eq!(
        (&lines[0].shape[..], &lines[0].times[..], &lines[0].bucket[..]),
        (&[2, 2, 2, 2][..], &[0.0, 0.125][..], "5x16x16")
    );
    for line in &lines {
        let header = weights::Header::read(&data.join(&line.latent.shard)).unwrap();
        let bytes: Vec<u8> = line.latent_key.bytes().cycle().take(32).collect();
        assert_eq!(header.read_tensor(&line.latent.name).unwrap(), bytes);
    }
    assert!(head.empty_text.is_some());
    assert_eq!(StoreSpec::read(&data).unwrap(), spec());
}

#[test]
fn a_second_encode_reuses_equal_keys_and_reports_why_others_are_stale() {
    let (_keep, data) = temp();
    encode(&data, &manifest(&[1, 2, 3, 4]), &spec());
    let before = files(&data);
    let (plan, count) = encode(&data, &manifest(&[1, 2, 3, 4]), &spec());
    assert_eq!((plan.reuse, plan.is_done(), count), (4, true, 0));
    assert_eq!(files(&data).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());

    let mut changed = manifest(&[7, 1, 2, 3]);
    changed.clips[1].caption = "another caption".into();
    changed.clips[2].content = "another video".into();
    let (plan, count) = encode(&data, &changed, &spec());
    assert_eq!((plan.reuse, plan.new, count), (1, 1, 4));
    let stale: Vec<String> = plan.stale.iter().map(|(id, why)| format!("{id}: {why}")).collect();
    insta::assert_snapshot!(format!("{}\n{}", plan.summary(), stale.join("\n")));
    assert_eq!(lines(&data).1.iter().map(|line| line.id.clone()).collect::<Vec<_>>()[3], "clips/3.mp4");

    let mut other = spec();
    (other.vae.identity, other.text.len) = ("v2".into(), 3);
    let plan = plan_encode(&data, &changed, &other, Quarantined::Skip).unwrap();
    assert_eq!((plan.reuse, plan.new, plan.stale.len()), (0, 0, 4));
    insta::assert_snapshot!(plan.stale[0].1, @"VAE changed, text length changed");
}

#[test]
fn an_interrupted_and_changed_encode_keeps_complete_items() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 2, 3, 4]), &spec(), Quarantined::Skip).unwrap();
    // There is space for the texts and two and a half latents.
    let queue = Queue::create(&data, &plan, &holder("a"), full_after(1400, &clock)).unwrap();
    assert_eq!(work(&queue).unwrap_err().code, ErrorCode::DiskFull);
    let done = queue.progress().unwrap();
    assert!(done.texts_done + done.latents_done > 3 && done.latents_done < 4, "{done:?}");
    drop(queue);
    let plan = plan_encode(&data, &manifest(&[9, 1, 2, 3, 4]), &spec(), Quarantined::Skip).unwrap();
    let queue = Queue::create(&data, &plan, &holder("b"), timing(&clock)).unwrap();
    assert_eq!(work(&queue).unwrap() + done.texts_done + done.latents_done, plan.items.len());
    assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
    drop(queue);
    let (_keep, fresh) = temp();
    encode(&fresh, &manifest(&[9, 1, 2, 3, 4]), &spec());
    assert_eq!(files(&data), files(&fresh));
}

#[test]
fn a_second_encode_into_the_folder_is_refused_and_names_the_first() {
    let (_keep, data) = temp();
    let plan = plan_encode(&data, &manifest(&[1, 2]), &spec(), Quarantined::Skip).unwrap();
    let quick = || Timing {
        expiry: Duration::from_millis(400),
        heartbeat: Some(Duration::from_millis(20)),
        ..Timing::default()
    };
    let first = Queue::create(&data, &plan, &holder("first"), quick()).unwrap();
    let refused = Queue::create(&data, &plan, &holder("second"), quick()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::AlreadyExists);
    assert!(refused.why.contains(&holder("first").worker()), "{refused}");
    // The first encode gave the lease back, so the second does not wait.
    drop(first);
    let clock = Arc::new(FakeClock::default());
    let second = Queue::create(&data, &plan, &holder("second"), timing(&clock)).unwrap();
    assert_eq!(clock.now(), Duration::ZERO);
    // The second encode crashes. An encode of the same name continues at once; another one waits for the expiry.
    std::mem::forget(second);
    std::mem::forget(Queue::create(&data, &plan, &holder("second"), timing(&clock)).unwrap());
    assert_eq!(clock.now(), Duration::ZERO);
    Queue::create(&data, &plan, &holder("third"), timing(&clock)).unwrap();
    assert!(clock.now() >= EXPIRY);
}

#[test]
fn a_live_encode_is_found_without_taking_its_lease_and_a_crashed_or_ended_one_is_no_obstacle() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let check = |timing: &Timing, ended: &str| check_no_encode_within(&data, &|holder| holder.run == ended, timing);
    let code = |result: Result<(), Failure>| result.map_err(|failure| failure.code);
    assert_eq!(code(check(&timing(&clock), "")), Ok(()), "there is no data set yet");
    let plan = plan_encode(&data, &manifest(&[1, 2]), &spec(), Quarantined::Skip).unwrap();
    let quick =
        Timing { expiry: Duration::from_millis(400), heartbeat: Some(Duration::from_millis(20)), ..Timing::default() };
    let first = Queue::create(&data, &plan, &holder("first"), quick.clone()).unwrap();
    let refused = check(&quick, "").unwrap_err();
    assert_eq!(refused.code, ErrorCode::AlreadyExists);
    assert!(refused.why.contains(&holder("first").worker()), "{refused}");
    assert_eq!(code(check(&quick, "first")), Ok(()));
    assert!(!data.join("work/folder.1").exists(), "the check takes no lease");
    drop(first);
    assert_eq!(code(check(&timing(&clock), "")), Ok(()));
    // The next encode crashes.
    std::mem::forget(Queue::create(&data, &plan, &holder("second"), timing(&clock)).unwrap());
    let before = clock.now();
    assert_eq!(code(check(&timing(&clock), "second")), Ok(()));
    assert_eq!(clock.now(), before);
    assert_eq!(code(check(&timing(&clock), "")), Ok(()));
    assert!(clock.now() >= before + EXPIRY);
}

#[test]
fn the_folder_stays_locked_after_the_worker_that_created_the_queue_dies() {
    let (_keep, data) = temp();
    let plan = plan_encode(&data, &manifest(&[1, 2]), &spec(), Quarantined::Skip).unwrap();
    let clock = Arc::new(FakeClock::default());
    let dead = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    let live = Queue::open(&data, &Holder { pid: 8, ..holder("a") }, timing(&clock)).unwrap();
    live.keep_folder();
    std::mem::forget(dead);
    clock.sleep(EXPIRY / 2);
    live.keep_folder();
    assert!(data.join("work/folder.1").exists(), "it was taken over");
    // Another encode sees heartbeats on its own clock, because the worker sends them while that encode waits.
    #[derive(Debug)]
    struct Beating(Arc<FakeClock>, Arc<Queue>);
    impl Clock for Beating {
        fn now(&self) -> Duration {
            self.0.now()
        }
        fn sleep(&self, time: Duration) {
            self.0.sleep(time);
            self.1.keep_folder();
        }
    }
    let live = Arc::new(live);
    let watched: Arc<dyn Clock> = Arc::new(Beating(clock.clone(), live.clone()));
    let refused = Queue::create(&data, &plan, &holder("b"), Timing { clock: watched, ..timing(&clock) }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::AlreadyExists);
    assert!(refused.why.contains(&Holder { pid: 8, ..holder("a") }.worker()), "{refused}");
    // The last worker gives the lease back.
    drop(live);
    let before = clock.now();
    drop(Queue::create(&data, &plan, &holder("b"), timing(&clock)).unwrap());
    assert_eq!(clock.now(), before);
}

#[test]
fn workers_of_an_encode_whose_folder_was_taken_over_stop_with_that_reason() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 2]), &spec(), Quarantined::Skip).unwrap();
    let cut_off = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    // The encode `b` waits, sees no heartbeat, and takes the folder over.
    let plan = plan_encode(&data, &manifest(&[1, 2, 3]), &spec(), Quarantined::Skip).unwrap();
    let other = Queue::create(&data, &plan, &holder("b"), timing(&clock)).unwrap();
    cut_off.keep_folder();
    assert_eq!(cut_off.claim(ItemKind::Text).unwrap_err().code, ErrorCode::AlreadyExists);
    assert_eq!(finish(&cut_off).unwrap_err().code, ErrorCode::AlreadyExists);
    drop(cut_off);
    work(&other).unwrap();
    assert!(matches!(finish(&other).unwrap(), QueueFinish::Joined(_)));
    drop(other);
    assert_eq!(lines(&data).1.len(), 3);
    assert!(!data.join("work").exists());
}

#[test]
fn the_lease_of_a_complete_encode_is_removed_even_if_its_holder_died() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 2]), &spec(), Quarantined::Skip).unwrap();
    let dead = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    let live = Queue::open(&data, &holder("a"), timing(&clock)).unwrap();
    std::mem::forget(dead);
    work(&live).unwrap();
    assert!(matches!(finish(&live).unwrap(), QueueFinish::Joined(_)));
    drop(live);
    assert!(!data.join("work").exists());
}

#[test]
fn shards_of_earlier_indexes_are_never_replaced_and_listed_as_unused() {
    let (_keep, data) = temp();
    encode(&data, &manifest(&[1, 2, 3, 4, 5, 6, 7]), &spec());
    let before = files(&data);
    assert_eq!(unused_shards(&data).unwrap(), []);
    // The clips of the second shard are removed; then new clips are added.
    encode(&data, &manifest(&[1, 2, 3]), &spec());
    let unused = unused_shards(&data).unwrap();
    assert_eq!(unused.iter().map(|shard| shard.name.as_str()).collect::<Vec<_>>(), ["latents-00001.safetensors"]);
    encode(&data, &manifest(&[1, 2, 3, 8, 9]), &spec());
    let after = files(&data);
    let shards = before.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    for (name, bytes) in shards {
        assert_eq!(after.get(name), Some(bytes), "{name}");
    }
    assert!(after.contains_key("latents-00002.safetensors"));
    let removed = remove_unused(&data).unwrap();
    assert_eq!(removed, unused);
    assert_eq!((unused_shards(&data).unwrap(), lines(&data).1.len()), (vec![], 5));
    crate::Table::open(&data, &model()).unwrap();
    // An encode that was interrupted may have written shards that its index will name.
    let plan = plan_encode(&data, &manifest(&[1]), &spec(), Quarantined::Skip).unwrap();
    let clock = Arc::new(FakeClock::default());
    let _queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    assert_eq!(remove_unused(&data).unwrap_err().code, ErrorCode::AlreadyExists);
}

#[test]
fn each_segment_of_a_clip_has_its_text() {
    let (_keep, data) = temp();
    let mut manifest = manifest(&[1, 3]);
    manifest.clips[0].segments = vec!["a cat".into(), "it sleeps".into()];
    manifest.clips[1].segments = vec!["it sleeps".into(), "it wakes".into()];
    assert_eq!(manifest.check_segments(1).unwrap_err().code, ErrorCode::InvalidDataset);
    manifest.check_segments(2).unwrap();
    let (plan, _) = encode(&data, &manifest, &spec());
    // Three captions and the empty one.
    assert_eq!(plan.count(ItemKind::Text), 4);
    let lines = lines(&data).1;
    assert_eq!((lines[0].text.len(), &lines[0].text[1]), (2, &lines[1].text[0]));
    let segments = model().with_cogvideox(|keys| keys.segments = 2);
    let table = crate::Table::open(&data, &segments).unwrap();
    assert_eq!((table.texts(0)[1], table.texts(1).len()), (table.texts(1)[0], 2));
    assert_eq!(crate::Table::open(&data, &model()).unwrap_err().code, ErrorCode::InvalidDataset);
}

#[test]
fn the_conditions_of_a_recipe_are_found_and_others_are_refused_with_the_key_that_differs() {
    use recipe::{ConditionKind, Conditioning};
    let condition = Conditioning { kind: ConditionKind::Image, image_noise: true, draws: 2, ..Conditioning::default() };
    let made = StoreSpec { condition: ConditionSpec::of(&condition).unwrap(), ..spec() };
    assert_ne!(made.latent_key("a"), spec().latent_key("a"));
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 3]), &made, Quarantined::Skip).unwrap();
    let queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    for kind in [ItemKind::Text, ItemKind::Latent] {
        while let Claim::Range(mut range) = queue.claim(kind).unwrap() {
            for item in range.items().to_vec() {
                let (shape, bytes) = encoded(&item);
                let latent = NewTensor { role: "", dtype: Dtype::BF16, shape: &shape, bytes: &bytes };
                let image = |role, bytes| NewTensor { role, dtype: Dtype::BF16, shape: &[1, 2, 2, 2], bytes };
                let tensors = [latent, image("image", &[1; 16]), image("image.1", &[2; 16])];
                let count = if kind == ItemKind::Text { 1 } else { 3 };
                range.commit(&item, &[], &tensors[..count]).unwrap();
            }
            range.finish().unwrap();
        }
    }
    finish(&queue).unwrap();
    drop(queue);
    let open =
        |condition: &Conditioning| crate::Table::open(&data, &model()).unwrap().with_conditions(condition, &model());
    let table = open(&condition).unwrap();
    let read = |slot| table.reader().read(slot).unwrap().bytes[0];
    assert_eq!(table.extras(1).iter().map(|slot| read(*slot)).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(crate::Table::from_bytes(&table.to_bytes()).unwrap(), table);
    open(&Conditioning { draws: 1, ..condition.clone() }).unwrap();
    for (other, key) in [
        (Conditioning { draws: 3, ..condition.clone() }, "condition.draws"),
        (Conditioning { image_noise: false, ..condition.clone() }, "condition.image_noise"),
        (Conditioning { kind: ConditionKind::Inpaint, ..condition.clone() }, "condition.kind"),
    ] {
        let failure = open(&other).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidDataset);
        assert!(failure.why.contains(key), "{failure}");
    }
    // A change of the condition encodes the clips again, and a store without one is refused.
    let plan = plan_encode(&data, &manifest(&[1, 3]), &spec(), Quarantined::Skip).unwrap();
    assert_eq!(plan.stale[0].1, "condition changed");
    let (_keep, plain) = temp();
    encode(&plain, &manifest(&[1]), &spec());
    let failure = crate::Table::open(&plain, &model()).unwrap().with_conditions(&condition, &model()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    assert!(failure.fix.contains("vidtui data encode") && failure.fix.contains("--for"), "{failure}");
}

#[test]
fn failed_items_are_listed_left_out_and_retried_on_request() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let manifest = manifest(&[1, 3, 4]);
    let plan = plan_encode(&data, &manifest, &spec(), Quarantined::Skip).unwrap();
    let queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    let broken = Failure::new(ErrorCode::Malformed, "cannot decode 3.mp4", "it is damaged", "cut it again");
    for kind in [ItemKind::Text, ItemKind::Latent] {
        while let Claim::Range(mut range) = queue.claim(kind).unwrap() {
            for item in range.items().to_vec() {
                if item.name == "clips/3.mp4" {
                    range.fail(&item, broken.clone()).unwrap();
                } else {
                    commit(&mut range, &item).unwrap();
                }
            }
            range.finish().unwrap();
        }
    }
    assert_eq!(queue.failures().unwrap()[0].1, broken);
    let QueueFinish::Joined(joined) = finish(&queue).unwrap() else { panic!("it waits") };
    assert_eq!((joined.clips, joined.failed, joined.left_out), (2, 1, 1));
    drop(queue);
    assert_eq!(files(&data.join("work")).into_keys().collect::<Vec<_>>(), ["failures.jsonl"]);

    let plan = plan_encode(&data, &manifest, &spec(), Quarantined::Skip).unwrap();
    assert_eq!((plan.reuse, plan.new, plan.items.len(), plan.quarantined.len()), (2, 0, 0, 1));
    assert_eq!(plan.quarantined[0].1, broken);
    let plan = plan_encode(&data, &manifest, &spec(), Quarantined::Retry).unwrap();
    // The text of a clip that was left out is encoded again.
    assert_eq!((plan.count(ItemKind::Text), plan.count(ItemKind::Latent), plan.quarantined.len()), (1, 1, 0));
    let queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    assert_eq!(work(&queue).unwrap(), 2);
    assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
    drop(queue);
    assert_eq!(lines(&data).1.len(), 3);
    assert!(!data.join("work").exists());
}

#[test]
fn a_slow_worker_that_lost_its_range_does_no_harm() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 3]), &spec(), Quarantined::Skip).unwrap();
    let slow = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    let quick = Queue::open(&data, &holder("a"), timing(&clock)).unwrap();
    let Claim::Range(mut range) = slow.claim(ItemKind::Text).unwrap() else { panic!("nothing to do") };
    let items = range.items().to_vec();
    commit(&mut range, &items[0]).unwrap();
    // The fast worker reads the lease, waits, and finds it unchanged.
    assert!(matches!(quick.claim(ItemKind::Text).unwrap(), Claim::Wait));
    clock.sleep(EXPIRY / 2);
    assert_eq!(range.heartbeat().unwrap(), Held::Mine);
    assert!(matches!(quick.claim(ItemKind::Text).unwrap(), Claim::Wait));
    clock.sleep(EXPIRY - Duration::from_secs(1));
    assert!(matches!(quick.claim(ItemKind::Text).unwrap(), Claim::Wait));
    clock.sleep(Duration::from_secs(1));
    let Claim::Range(mut taken) = quick.claim(ItemKind::Text).unwrap() else { panic!("not taken over") };
    assert_eq!(taken.items(), &items[1..]);
    assert_eq!(range.heartbeat().unwrap(), Held::Lost);
    assert_eq!(commit(&mut range, &items[1]).unwrap(), Held::Lost);
    for item in taken.items().to_vec() {
        commit(&mut taken, &item).unwrap();
    }
    taken.finish().unwrap();
    assert_eq!(range.finish().unwrap(), Held::Lost);
    drop(range);
    work(&slow).unwrap();
    assert!(matches!(finish(&slow).unwrap(), QueueFinish::Joined(_)));
    assert!(matches!(finish(&quick).unwrap(), QueueFinish::Done));
    assert!(matches!(quick.claim(ItemKind::Latent).unwrap(), Claim::Done));
}

#[test]
fn joining_continues_after_every_interruption() {
    let (_keep, whole) = temp();
    let manifest = manifest(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    encode(&whole, &manifest, &spec());
    for stop in 0..40 {
        let (_keep, data) = temp();
        let clock = Arc::new(FakeClock::default());
        let plan = plan_encode(&data, &manifest, &spec(), Quarantined::Skip).unwrap();
        let queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
        work(&queue).unwrap();
        let mut steps = 0;
        let stopped = queue.finish(&mut |_| {
            steps += 1;
            if steps > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match stopped {
            Ok(_) => {
                assert!(stop > 5, "it stopped nowhere");
                return;
            }
            Err(failure) => assert_eq!(failure.code, ErrorCode::Cancelled, "{failure}"),
        }
        assert!(!data.join(INDEX).exists());
        assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
        drop(queue);
        assert_eq!(files(&data), files(&whole), "stopped after {stop}");
    }
}

/// A model with latents `[2, 1, 2, 2]` and texts of two tokens of width 2.
pub(super) fn model() -> recipe::Model {
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    let model = recipe::load(minimal.into(), &[]).unwrap().recipe.model;
    let (latent_height, latent_width, in_channels, out_channels) = (2, 2, 1, 1);
    recipe::Model {
        latent_frames: 2,
        latent_height,
        latent_width,
        in_channels,
        out_channels,
        text_len: 2,
        text_dim: 2,
        latent_scale: 0.7,
        ..model
    }
}

#[test]
fn every_tensor_of_a_store_is_read_by_training() {
    let (_keep, data) = temp();
    encode(&data, &manifest(&[4, 1, 2, 3, 5, 9, 8]), &spec());
    let table = crate::Table::open(&data, &model()).unwrap();
    assert_eq!(table, crate::Table::open(&data.join(INDEX), &model()).unwrap());
    assert_eq!(crate::Table::from_bytes(&table.to_bytes()).unwrap(), table);
    assert_eq!(crate::Table::from_bytes(&table.to_bytes()[..650]), None);
    let (reader, lines) = (table.reader(), lines(&data).1);
    for (number, line) in lines.iter().enumerate() {
        let latent = reader.read(table.latent(number)).unwrap();
        let key = |key: &str, len| key.bytes().cycle().take(len).collect::<Vec<u8>>();
        assert_eq!((latent.bytes, latent.moments), (key(&line.latent_key, 32), true));
        assert_eq!(reader.read(table.texts(number)[0]).unwrap().bytes, key(&line.text_keys[0], 8));
    }
    assert!(table.empty_text().is_some());
}

#[test]
fn latents_may_stay_unscaled_whatever_the_factor_of_their_vae() {
    let (_keep, data) = temp();
    encode(&data, &manifest(&[1, 2, 3]), &spec());
    let opens = |latent_scale| crate::Table::open(&data, &recipe::Model { latent_scale, ..model() }).is_ok();
    assert_eq!([1.0, 0.7, 0.700001, 0.71, 1.15].map(opens), [true, true, true, false, false]);
}

#[test]
fn a_data_set_of_another_rate_is_refused() {
    let (_keep, data) = temp();
    let spec = StoreSpec { frames: FrameSpec { fps: Some(8.0), ..spec().frames }, ..spec() };
    encode(&data, &manifest(&[1, 2, 3]), &spec);
    assert_eq!(crate::frame_rate(&data.join(INDEX)).unwrap(), Some(8.0));
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    let recipe = |fps: f64| {
        let recipe = recipe::load(minimal.into(), &[format!("data.fps={fps}")]).unwrap().recipe;
        recipe::Recipe { model: model(), ..recipe }
    };
    let open = |fps| crate::Table::without_conditions(&recipe(fps), &data).map_err(|failure| failure.code);
    assert!(open(8.0).is_ok() && open(0.0).is_ok());
    assert_eq!(open(16.0).unwrap_err(), ErrorCode::InvalidDataset);
}

#[test]
fn damaged_stores_and_stores_of_other_models_are_refused() {
    let damaged = |harm: &dyn Fn(&Utf8Path)| {
        let (_keep, data) = temp();
        encode(&data, &manifest(&[1, 2, 3]), &spec());
        harm(&data);
        let failure = crate::Table::open(&data, &model()).unwrap_err();
        (failure.code, failure.to_string().replace(data.as_str(), "DATA"))
    };
    let edit = |data: &Utf8Path, name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(data.join(name)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(data.join(name), text.replacen(from, to, 1)).unwrap();
    };
    let cut = damaged(&|data| {
        let shard = fs::OpenOptions::new().write(true).open(data.join("latents-00000.safetensors")).unwrap();
        shard.set_len(shard.metadata().unwrap().len() - 1).unwrap();
    });
    let gone = damaged(&|data| fs::remove_file(data.join("texts-00000.safetensors")).unwrap());
    let missing = damaged(&|data| edit(data, INDEX, "\"name\":\"clips/2.mp4\"", "\"name\":\"clips/7.mp4\""));
    let newer = damaged(&|data| edit(data, SPEC, "schema = 1", "schema = 2"));
    let newer_index = damaged(&|data| edit(data, INDEX, "\"schema\":1", "\"schema\":2"));
    let cut_index = damaged(&|data| {
        let text = fs::read_to_string(data.join(INDEX)).unwrap();
        let whole: Vec<&str> = text.split_inclusive('\n').collect();
        fs::write(data.join(INDEX), whole[..3].concat()).unwrap();
    });
    let torn_index = damaged(&|data| {
        let text = fs::read(data.join(INDEX)).unwrap();
        fs::write(data.join(INDEX), &text[..text.len() - 9]).unwrap();
    });
    let between = damaged(&|data| edit(data, SPEC, "seed = 3", "seed = 4"));
    assert_eq!([cut.0, gone.0, missing.0], [ErrorCode::Malformed, ErrorCode::NotFound, ErrorCode::InvalidDataset]);
    assert_eq!([newer.0, newer_index.0], [ErrorCode::NewerFormat; 2]);
    assert_eq!([cut_index.0, torn_index.0, between.0], [ErrorCode::InvalidDataset; 3]);

    let other = |change: &dyn Fn(&mut recipe::Model)| {
        let (_keep, data) = temp();
        encode(&data, &manifest(&[1, 2, 3]), &spec());
        let mut model = model();
        change(&mut model);
        let failure = crate::Table::open(&data, &model).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidDataset, "{failure}");
        failure.to_string().replace(data.as_str(), "DATA")
    };
    let models = [
        other(&|model| model.latent_scale = 1.15),
        other(&|model| (model.in_channels, model.out_channels) = (16, 16)),
        other(&|model| model.text_dim = 4096),
        other(&|model| model.latent_frames = 13),
        other(&|model| *model = model.with_cogvideox(|keys| keys.segments = 2)),
    ];
    let shown = [cut, gone, missing, newer, newer_index, cut_index, torn_index, between].map(|(_, text)| text);
    insta::assert_snapshot!([&shown[..], &models[..]].concat().join("\n\n"));
}

#[test]
fn a_store_is_summarized_during_an_encode_too() {
    let (_keep, data) = temp();
    let clock = Arc::new(FakeClock::default());
    let plan = plan_encode(&data, &manifest(&[1, 3, 4]), &spec(), Quarantined::Skip).unwrap();
    let queue = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
    let Claim::Range(mut range) = queue.claim(ItemKind::Latent).unwrap() else { panic!("nothing to do") };
    let items = range.items().to_vec();
    commit(&mut range, &items[0]).unwrap();
    range.fail(&items[1], Failure::new(ErrorCode::Malformed, "cannot decode", "it is cut", "")).unwrap();
    let summary = crate::show::summarize(&data).unwrap();
    let encode = summary.encode.unwrap();
    assert_eq!((summary.clips, encode.latents, encode.latents_done, encode.failed), (0, 3, 1, 1));
    assert_eq!(summary.failures[0].item, items[1]);
    drop(range);
    work(&queue).unwrap();
    finish(&queue).unwrap();
    drop(queue);
    let summary = crate::show::summarize(&data).unwrap();
    assert_eq!((summary.clips, summary.texts, summary.encode, summary.failures.len()), (2, 2, None, 1));
    assert_eq!(summary.buckets["5x16x16"], 2);
    assert_eq!(crate::show::find_clip(&data, "clips/1.mp4").unwrap().caption, "caption 1");
    let unknown = crate::show::find_clip(&data, "clips/3.mp4").unwrap_err();
    assert_eq!(unknown.code, ErrorCode::UnknownName);
    assert!(unknown.why.contains("cannot decode"), "{unknown}");
    assert_eq!(crate::show::find_clip(&data, "none").unwrap_err().code, ErrorCode::UnknownName);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Workers crash in the middle of a write, at any byte, and others take over. Sometimes a worker continues after
    /// its range was taken over.
    #[test]
    fn crashes_and_take_overs_give_the_bytes_of_one_undisturbed_worker(
        rooms in proptest::collection::vec(0usize..2500, 0..6),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0u64..80), 0..4),
        zombie in any::<bool>(),
        clips in 1usize..14,
    ) {
        let ids: Vec<usize> = (1..=clips).collect();
        let (_keep, whole) = temp();
        let (plan, count) = encode(&whole, &manifest(&ids), &spec());
        let (_keep, data) = temp();
        let clock = Arc::new(FakeClock::default());
        let again = plan_encode(&data, &manifest(&ids), &spec(), Quarantined::Skip).unwrap();
        prop_assert_eq!(&again.items, &plan.items);
        let first = Queue::create(&data, &plan, &holder("a"), timing(&clock)).unwrap();
        let mut attempts = 0;
        let mut zombies = Vec::new();
        for (number, room) in rooms.iter().enumerate() {
            let queue = Queue::open(&data, &Holder { pid: number as u32, ..holder("a") }, full_after(*room, &clock)).unwrap();
            // A crash in the middle of an item: nothing is given back.
            'kinds: for kind in [ItemKind::Text, ItemKind::Latent] {
                loop {
                    match queue.claim(kind).unwrap() {
                        Claim::Done => break,
                        Claim::Wait => queue.timing.clock.sleep(Duration::from_secs(1)),
                        Claim::Range(mut range) => {
                            let items = range.items().to_vec();
                            let mut crashed = false;
                            for item in &items {
                                attempts += 1;
                                crashed = commit(&mut range, item).is_err();
                                if crashed { break; }
                            }
                            if crashed {
                                zombies.push(range);
                                break 'kinds;
                            }
                            range.finish().unwrap();
                        }
                    }
                }
            }
        }
        // A crash of a node may lose bytes that were written but not synced, at the end of parts whose ranges are not
        // done.
        let parts = data.join("work/0/parts");
        let mut lost: Vec<Utf8PathBuf> = parts.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
        lost.sort();
        lost.retain(|path| {
            let range = path.file_stem().unwrap().split('-').next().unwrap();
            !data.join(format!("work/0/done/{range}.jsonl")).exists()
        });
        let mut cut = 0;
        for (index, bytes) in cuts.iter().filter(|_| !lost.is_empty()) {
            let path = index.get(&lost);
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let len = file.metadata().unwrap().len();
            file.set_len(len.saturating_sub(*bytes)).unwrap();
            cut += 1;
        }
        if zombie {
            for range in &mut zombies {
                // The disk may still be full, or the range may be taken over; otherwise the worker writes to its own
                // part.
                for item in range.items().to_vec() {
                    let _ = commit(range, &item);
                }
            }
        }
        let crashes = zombies.len();
        zombies.into_iter().for_each(std::mem::forget);
        let encoded = work(&first).unwrap();
        if cut == 0 {
            prop_assert!(attempts + encoded <= count + crashes, "{} + {} of {}", attempts, encoded, count);
        }
        prop_assert!(matches!(finish(&first).unwrap(), QueueFinish::Joined(_)));
        drop(first);
        prop_assert_eq!(files(&data), files(&whole));
    }
}
