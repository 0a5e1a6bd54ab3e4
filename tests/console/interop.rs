//! Tests of exports to TensorBoard, W&B and Prometheus, imports from other tools, reports and the status line.

use crate::pty::ENTER;
use crate::test_site::{TestSite, error_code};
use rundir::{
    ErrorCode, Event, EventKind, ExitFile, ExitReason, Failure, LineAppender, MetricSample, NodeEnvironment, RunDir,
    SCHEMA, fixtures,
};
use serde_json::Value;
use std::fs;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/interop");

#[test]
fn a_command_is_in_tensorboard_wandb_and_prometheus_while_and_after_it_trains() {
    let site = TestSite::new();
    let log = "***** Running training *****\\n\
               Steps:  50%%|##   | 1/2 [00:01<00:09,  0.05s/it, loss=0.5, lr=1e-5]\\n\
               Steps: 100%%|#####| 2/2 [00:01<00:09,  0.05s/it, loss=0.25, lr=1e-5]\\n";
    site.write(
        "configs/factory.toml",
        &format!(
            "trainer = \"command\"\n[command]\nrun = [\"printf\", '{log}']\nadapter = \"cogvideox_factory\"\n\
             [train]\nsteps = 2\n[log]\ntensorboard = true\nwandb = \"offline\"\nprometheus = \"../collected\"\n"
        ),
    );
    fs::create_dir(site.root.join("collected")).unwrap();
    let run = site.succeeds(&["launch", "configs/factory.toml", "--wait"]);
    let run = run.trim();
    let shown = interop::tensorboard::read_folder(&site.runs()[0].tensorboard()).unwrap();
    let losses: Vec<_> = shown.points("loss").iter().map(|point| (point.step, point.value)).collect();
    assert_eq!(losses, [(1, 0.5), (2, 0.25)]);
    let files = interop::wandb::offline_files(&site.runs()[0].wandb()).unwrap();
    let shown = interop::wandb::read_file(&files[0]).unwrap();
    assert_eq!(shown.points("loss").iter().map(|point| point.value).collect::<Vec<_>>(), [0.5, 0.25]);
    let imported = site.json(&["import", files[0].as_str(), "--json"]);
    assert_eq!(imported["runs"][0]["metrics"]["loss"], "loss");
    let prometheus = fs::read_to_string(site.root.join(format!("collected/vidtui-{run}.prom"))).unwrap();
    assert!(prometheus.contains("state=\"finished\"} 1\n"), "{prometheus}");
    assert!(prometheus.contains(&format!("\nvidtui_step{{run=\"{run}\",recipe=\"factory\"}} 2\n")), "{prometheus}");
    assert_eq!(site.succeeds(&["status", run, "--oneline"]), "finished  2/2  loss 0.2500  eta -\n");
}

#[test]
fn a_run_that_has_ended_is_exported_to_a_folder_for_tensorboard() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=3", "--wait"]);
    let export = ["export", "latest", "--tensorboard", "--out", "logs/short"];
    site.succeeds(&export);
    let folder = site.root.join("logs/short");
    let steps = || interop::tensorboard::read_folder(&folder).unwrap().points("loss").len();
    assert_eq!(steps(), 3);
    let again = site.vidtui(&export);
    assert!(again.code == 2 && again.stderr.contains("--force"), "{again:?}");
    site.succeeds(&[&export[..], &["--force"]].concat());
    assert_eq!((steps(), fs::read_dir(&folder).unwrap().count()), (3, 1));
    let part = site.vidtui(&["export", "latest", "--tensorboard", "--out", "part", "--from", "2"]);
    assert!(part.code == 2 && part.stderr.contains("--from"), "{part:?}");
    let imported = &site.json(&["import", "logs/short", "--json"])["runs"][0];
    let imported = site.vidtui(&["export", imported["run"].as_str().unwrap(), "--tensorboard", "--out", "imported"]);
    assert!(imported.code == 1 && imported.stderr.contains("imported"), "{imported:?}");
}

#[test]
fn an_imported_run_is_shown_like_any_other_and_cannot_be_resumed_or_signalled() {
    let site = TestSite::new();
    let imported = &site.json(&["import", &format!("{FIXTURES}/offline-run"), "--json"])["runs"][0];
    assert_eq!(imported["metrics"]["loss"], "train/loss");
    assert_eq!(imported["others"][0], "nested.a");
    let run = imported["run"].as_str().unwrap();
    let listed = &site.json(&["runs", "--json"])["runs"][0];
    assert_eq!((&listed["run"], &listed["state"], &listed["step"]), (&run.into(), &"finished".into(), &7.into()));
    assert_eq!(listed["loss"], 0.125);
    site.succeeds(&["export", run, "--metric", "nested.a", "--metric", "loss", "--out", "x.csv"]);
    let table = fs::read_to_string(site.root.join("x.csv")).unwrap();
    let (head, first) = table.split_once("\r\n").unwrap();
    assert_eq!(head, "attempt,step,t,nested.a,loss");
    assert!(first.starts_with("1,1,") && first.lines().next().unwrap().ends_with(",1,1"), "{table}");
    site.succeeds(&["export", run, "--metric", "nested.a", "--out", "x.svg"]);
    assert_eq!(site.vidtui(&["export", run, "--metric", "nested", "--out", "x.csv"]).code, 2);
    for command in [&["resume", run][..], &["stop", run], &["kill", run, "--yes"], &["stacks", run], &["profile", run]]
    {
        assert_eq!(site.error(command), (1, "run-imported".into()), "{command:?}");
    }
    site.console((100, 30), &["--open", run], &[]).shows(&["a-small-run", "0.1250", "All 7 steps done"]).press("q");
}

#[test]
fn a_tensorboard_folder_is_imported_and_a_path_without_a_log_is_refused() {
    let site = TestSite::new();
    let imported = &site.json(&["import", &format!("{FIXTURES}/tensorboard"), "--name", "old", "--json"])["runs"][0];
    assert_eq!((&imported["tool"], &imported["values"]), (&"TensorBoard".into(), &14.into()));
    assert_eq!(site.json(&["status", "latest", "--json"])["step"], 7);
    assert_eq!(site.error(&["import", FIXTURES, "--name", "old"]), (2, "invalid-argument".into()));
    assert_eq!(site.error(&["import", FIXTURES, "configs"]), (2, "not-found".into()));
    assert_eq!(site.error(&["import", "nowhere"]).1, "not-found");
    site.write("broken.wandb", "not a log");
    assert_eq!(site.error(&["import", "broken.wandb"]).0, 1);
    let entries = fs::read_dir(site.root.join("runs")).unwrap().count();
    assert_eq!((site.runs().len(), entries), (1, 1), "a failed import leaves nothing");
}

#[test]
fn the_logs_in_a_folder_are_imported_once_and_a_broken_one_does_not_stop_the_others() {
    let site = TestSite::new();
    site.write("logs/broken.wandb", "not a log");
    let wandb = "wandb/offline-run-20260301_101500-small";
    for (from, to) in [("tensorboard", "exp/train"), ("offline-run", wandb)] {
        fs::create_dir_all(site.root.join("logs").join(to)).unwrap();
        for file in camino::Utf8Path::new(FIXTURES).join(from).read_dir_utf8().unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), site.root.join("logs").join(to).join(file.file_name())).unwrap();
        }
    }
    let first = site.vidtui(&["import", "logs", "--json"]);
    let document: Value = serde_json::from_str(&first.stdout).unwrap();
    let failure = &document["failed"][0]["failure"];
    assert_eq!((first.code, Some(error_code(&first.stderr).as_str())), (1, failure["code"].as_str()));
    let of = |document: &Value, field: &str| -> Vec<Value> {
        document["runs"].as_array().unwrap().iter().map(|run| run[field].clone()).collect()
    };
    assert_eq!(of(&document, "name"), ["exp/train", "a small run"]);
    assert_eq!(
        (of(&document, "steps"), of(&document, "last_step")),
        (vec![7.into(), 7.into()], vec![7.into(), 7.into()])
    );
    assert_eq!(site.runs().len(), 2);

    fs::remove_file(site.root.join("logs/broken.wandb")).unwrap();
    let second = site.json(&["import", "logs", &format!("logs/{wandb}"), "--json"]);
    assert_eq!((of(&second, "run").len(), second["skipped"].as_array().unwrap().len()), (0, 2));
    assert_eq!(second["skipped"][0]["run"], document["runs"][0]["run"]);
    insta::assert_snapshot!(
        "import_several",
        site.redacted(&site.succeeds(&["import", "logs", "--again", "--dry-run"]))
    );
    assert_eq!(site.runs().len(), 2, "a dry run creates nothing");
}

#[test]
fn the_recipe_of_an_imported_run_shows_the_settings_of_its_log() {
    let site = TestSite::new();
    site.succeeds(&["import", &format!("{FIXTURES}/offline-run"), "--name", "old"]);
    assert!(site.succeeds(&["recipe", "show", "latest"]).contains(r#"{"layers":2}"#));
    assert!(site.succeeds(&["recipe", "show", "latest", "--json"]).contains("\"layers\": 2"));
    assert_eq!(site.error(&["recipe", "show", "latest", "--set", "train.steps=2"]), (2, "invalid-argument".into()));
    let console = site.console((120, 40), &[], &[]);
    console.shows(&["old"]).press(ENTER).shows(&["Loss"]).press("d").shows(&[r#"{"layers":2}"#]);
}

#[test]
fn a_report_is_one_page_without_scripts_that_escapes_what_it_shows() {
    let site = TestSite::new();
    let name = "<script>alert(1)</script>";
    site.succeeds(&["import", &format!("{FIXTURES}/offline-run"), "--name", name]);
    assert_eq!(site.vidtui(&["report", "latest", "--out", "page.pdf"]).code, 2);
    site.write("page.html", "mine");
    assert_eq!(site.vidtui(&["report", "latest", "--out", "page.html"]).code, 2);
    assert_eq!(std::fs::read_to_string(site.root.join("page.html")).unwrap(), "mine");
    site.succeeds(&["report", "latest", "--out", "page.html", "--force"]);
    let page = fs::read_to_string(site.root.join("page.html")).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    let links = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http://") && !links.contains("https://") && !links.contains("url("), "nothing is loaded");
    let charts = page.matches("<svg").count();
    assert_eq!(charts, 3, "loss, learning rate and the series nested.a");
    assert!(page.contains("{&quot;layers&quot;:2}"), "the settings of the log");
    assert_eq!(tables(&page, "Environment").len(), 1, "the log has no nodes");
}

/// Returns the tables below a heading of a page: the cells of each row.
fn tables(page: &str, heading: &str) -> Vec<Vec<Vec<String>>> {
    let (_, below) = page.split_once(&format!("<h2>{heading}</h2>")).unwrap_or_else(|| panic!("no {heading}: {page}"));
    let cells =
        |row: &str| -> Vec<String> { row.split("<td>").skip(1).map(|cell| before(cell, "</td>").to_owned()).collect() };
    let rows =
        |table: &str| -> Vec<Vec<String>> { before(table, "</table>").split("<tr>").skip(1).map(cells).collect() };
    before(below, "<h2>").split("<table>").skip(1).map(rows).collect()
}

fn before<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or(text, |(before, _)| before)
}

/// The beginning of an MP4 file.
const VIDEO: &[u8] = b"\0\0\0\x18ftypisom";

/// Writes a run on two nodes with a sample. The first attempt failed on ml-2, the second finished with a newer driver.
fn write_run(site: &TestSite) -> RunDir {
    let (run, names) = (fixtures::run(), ["ml-1", "ml-2"]);
    let nodes = names.map(fixtures::node);
    let dir = RunDir::of(&site.root.join("runs"), &run.id);
    nodes.iter().for_each(|node| fs::create_dir_all(dir.node_dir(node)).unwrap());
    dir.write_run(&run).unwrap();
    for (attempt, start_step) in [(1, 0), (2, 10)] {
        fs::create_dir_all(dir.attempt_dir(attempt)).unwrap();
        dir.write_attempt(&fixtures::attempt(attempt, start_step, &names)).unwrap();
        for node in &nodes {
            let is_cause = attempt == 1 && node.as_str() == "ml-2";
            let failure = Failure::new(ErrorCode::RankKilled, "rank 1 on node ml-2 was killed", "signal 9 <KILL>", "");
            let exit = ExitFile {
                schema: SCHEMA,
                attempt,
                node: node.clone(),
                ended_s: 1000.0 + 100.0 * f64::from(attempt),
                reason: if attempt == 1 { ExitReason::Failed } else { ExitReason::Finished },
                first_failure: is_cause.then_some(1),
                failure: is_cause.then_some(failure),
                ranks: Vec::new(),
            };
            dir.write_exit(&exit).unwrap();
            let driver = Some(format!("580.{attempt}"));
            // The kernels of equal nodes report slightly different sizes of memory.
            let mem_total_mib = Some(1_547_000 + u64::from(node.as_str() == "ml-2"));
            let environment = NodeEnvironment { driver, mem_total_mib, ..fixtures::node_environment() };
            dir.write_environment(node, attempt, &environment).unwrap();
        }
    }
    let mut metrics = LineAppender::open(&dir.metrics()).unwrap();
    for step in 1..=20 {
        let (attempt, loss) = (if step <= 10 { 1 } else { 2 }, Some(1.0 / step as f64));
        let t = 1000.0 + step as f64;
        let sample = MetricSample { attempt, step, t, loss, lr: 1e-4, step_s: 1.0, ..MetricSample::default() };
        metrics.append(&sample).unwrap();
    }
    let mut events = LineAppender::open(&dir.events()).unwrap();
    for (t, attempt, step, kind) in
        [(1000.0, 1, None, EventKind::Started { world: 2 }), (1200.0, 2, Some(20), EventKind::Finished)]
    {
        events.append(&Event::new(t, attempt, step, kind).by_rank(0)).unwrap();
    }
    let mut events = LineAppender::open(&dir.node_events(&nodes[1])).unwrap();
    let signal = EventKind::SignalReceived { signal: 15 };
    events.append(&Event::new(1100.0, 1, None, signal).by_node(nodes[1].clone())).unwrap();
    fs::create_dir_all(dir.samples_of(20)).unwrap();
    fs::write(dir.sample_video(20, 0), VIDEO).unwrap();
    fixtures::sample(20, 0).write(&dir.sample_video(20, 0).with_extension("json")).unwrap();
    dir
}

#[test]
fn a_report_has_the_attempts_the_failure_the_events_the_sample_and_the_nodes() {
    let site = TestSite::new();
    let dir = write_run(&site);
    site.succeeds(&["report", dir.name(), "--out", "page.html"]);
    let page = fs::read_to_string(site.root.join("page.html")).unwrap();
    let attempts = &tables(&page, "Attempts and failures")[0];
    let of = |attempt: usize, column: usize| attempts[attempt][column].as_str();
    assert_eq!((attempts.len(), of(1, 0), of(1, 2), of(2, 2)), (3, "1", "0", "10"));
    assert_eq!((of(1, 3), of(1, 4)), ("2", "ml-1, ml-2"));
    assert!(of(1, 5).starts_with("ml-2: ") && of(1, 5).contains("signal 9 &lt;KILL&gt;"), "{}", of(1, 5));
    assert!(!of(2, 5).contains("ml-"), "{}", of(2, 5));
    let recorded_by: Vec<_> = tables(&page, "Events")[0].iter().map(|row| row[2].clone()).collect();
    assert_eq!(recorded_by, ["rank 0", "ml-2", "rank 0"]);
    assert_eq!((page.matches("<video").count(), page.contains("base64,AAAAGGZ0eXBpc29t")), (1, true));
    assert!(page.matches("<svg").count() >= 3, "loss, learning rate and time of a step");
    let environment = tables(&page, "Environment");
    let [run, nodes] = &environment[..] else { panic!("{environment:?}") };
    assert!(run.contains(&vec!["libtorch".into(), "2.11.0".into()]), "{run:?}");
    let rows: Vec<_> = nodes[1..].iter().map(|row| [&row[0], &row[1], &row[3]]).collect();
    assert_eq!(rows, [["ml-[1-2]", "1", "580.1"], ["ml-[1-2]", "2", "580.2"]], "the nodes are alike");
    assert!(nodes[1][2].starts_with("2 × NVIDIA H100"), "{nodes:?}");
    assert!(tables(&page, "Recipe").is_empty() && page.contains("num_layers = 2"));
}

#[test]
fn a_report_has_only_samples_that_are_videos_in_the_folder_of_the_run() {
    let site = TestSite::new();
    let dir = write_run(&site);
    fs::remove_file(dir.sample_video(20, 0)).unwrap();
    fs::write(site.root.join("key"), "a private key of the reader").unwrap();
    std::os::unix::fs::symlink(site.root.join("key"), dir.sample_video(20, 0)).unwrap();
    site.succeeds(&["report", dir.name(), "--out", "page.html"]);
    let page = fs::read_to_string(site.root.join("page.html")).unwrap();
    assert_eq!((page.matches("<video").count(), page.matches("the video is left out").count()), (0, 1));
}

#[test]
fn a_supervisor_records_the_environment_of_its_node_for_the_report() {
    let site = TestSite::new();
    site.write(
        "configs/quick.toml",
        "trainer = \"command\"\n[command]\nrun = [\"true\"]\nadapter = \"none\"\n[train]\nsteps = 1\n",
    );
    site.succeeds(&["launch", "configs/quick.toml", "--wait"]);
    site.succeeds(&["report", "latest", "--out", "page.html"]);
    let page = fs::read_to_string(site.root.join("page.html")).unwrap();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let nodes = &tables(&page, "Environment")[1];
    assert!(nodes.len() == 2 && nodes[1][6].contains(kernel.trim()), "{nodes:?}");
}
