//! Tests of exports to TensorBoard, W&B and Prometheus, imports from other tools, reports and the status line.

use crate::pty::ENTER;
use crate::test_site::TestSite;
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
    assert_eq!(imported["metrics"]["loss"], "loss");
    let prometheus = fs::read_to_string(site.root.join(format!("collected/vidtui-{run}.prom"))).unwrap();
    assert!(prometheus.contains("state=\"finished\"} 1\n"), "{prometheus}");
    assert!(prometheus.contains(&format!("\nvidtui_step{{run=\"{run}\",recipe=\"factory\"}} 2\n")), "{prometheus}");
    assert_eq!(site.succeeds(&["status", run, "--oneline"]), "finished  2/2  loss 0.2500  eta -\n");
}

#[test]
fn an_imported_run_is_shown_like_any_other_and_cannot_be_resumed_or_signalled() {
    let site = TestSite::new();
    let imported = site.json(&["import", &format!("{FIXTURES}/offline-run"), "--json"]);
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
fn a_tensorboard_folder_is_imported_and_a_folder_of_several_runs_must_be_named_exactly() {
    let site = TestSite::new();
    let imported = site.json(&["import", &format!("{FIXTURES}/tensorboard"), "--name", "old", "--json"]);
    assert_eq!((&imported["tool"], &imported["values"]), (&"TensorBoard".into(), &14.into()));
    assert_eq!(site.json(&["status", "latest", "--json"])["step"], 7);
    assert_eq!(site.error(&["import", FIXTURES]), (2, "ambiguous-name".into()));
    assert_eq!(site.error(&["import", "configs"]), (2, "not-found".into()));
    assert_eq!(site.error(&["import", "nowhere"]).1, "not-found");
    site.write("broken.wandb", "not a log");
    assert_eq!(site.error(&["import", "broken.wandb"]).0, 1);
    assert_eq!(site.runs().len(), 1, "a failed import leaves nothing");
}

#[test]
fn the_recipe_of_an_imported_run_shows_the_settings_of_its_log() {
    let site = TestSite::new();
    site.succeeds(&["import", &format!("{FIXTURES}/offline-run"), "--name", "old"]);
    let console = site.console((120, 40), &[], &[]);
    console.shows(&["old"]).press(ENTER).shows(&["Loss"]).press("d").shows(&[r#"{"layers":2}"#]);
}

#[test]
fn a_report_is_one_page_without_scripts_that_escapes_what_it_shows() {
    let site = TestSite::new();
    let name = "<script>alert(1)</script>";
    site.succeeds(&["import", &format!("{FIXTURES}/offline-run"), "--name", name]);
    assert_eq!(site.vidtui(&["report", "latest", "--out", "page.pdf"]).code, 2);
    site.succeeds(&["report", "latest", "--out", "page.html"]);
    let page = fs::read_to_string(site.root.join("page.html")).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    let links = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http://") && !links.contains("https://") && !links.contains("url("), "nothing is loaded");
    let charts = page.matches("<svg").count();
    assert_eq!(charts, 3, "loss, learning rate and the series nested.a");
    assert!(page.contains("{&quot;layers&quot;:2}"), "the settings of the log");
}
