//! Tests of parsing recorded and damaged output of nvidia-smi.

use std::fs;

use proptest::prelude::*;

use super::*;

const FIXTURES: &str = "../../tests/fixtures/nvidia-smi";

/// A captured or hand-written output. Its `#` lines contain the command, the origin and the exit status.
struct Fixture {
    name: String,
    status: Option<i32>,
    text: String,
}

fn fixtures() -> Vec<Fixture> {
    let files = fs::read_dir(FIXTURES).unwrap().map(|entry| entry.unwrap().path());
    let mut fixtures: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    fixtures.sort();
    let read = |path: std::path::PathBuf| {
        let whole = fs::read_to_string(&path).unwrap();
        let comments = whole.split_inclusive('\n').take_while(|line| line.starts_with('#'));
        let (mut text, mut status) = (&whole[..], None);
        for comment in comments {
            text = &text[comment.len()..];
            status = comment.strip_prefix("# exit ").map_or(status, |status| status.trim().parse().ok());
        }
        Fixture { name: path.file_stem().unwrap().to_string_lossy().into(), status, text: text.into() }
    };
    fixtures.into_iter().map(read).collect()
}

fn fixture(name: &str) -> Fixture {
    fixtures().into_iter().find(|fixture| fixture.name == name).unwrap()
}

fn samples(name: &str) -> Output<GpuSample> {
    let Fixture { status, text, .. } = fixture(name);
    GpuQuery::default().read(&text, status, 1.0)
}

fn shown(fixture: &Fixture) -> String {
    let sample = |s: &GpuSample| {
        let text = |text: &Option<String>| text.clone().unwrap_or("-".into());
        let cells = [
            s.index.to_string(),
            text(&s.uuid),
            text(&s.name),
            text(&s.bus_id),
            format!("{} of {} W", s.power_w, s.power_limit_w),
            format!("{} of {} MiB", s.mem_used_mib, s.mem_total_mib),
            format!("{} %", s.util_pct),
            format!("{} C", s.temp_c),
            format!("{} MHz", s.sm_clock_mhz),
            format!("{} ecc", s.ecc_uncorrected),
            format!("({})", s.throttle_reasons),
        ];
        cells.join("  ") + if s.mig { "  mig" } else { "" }
    };
    let app = |app: &ComputeApp| {
        let ComputeApp { gpu_uuid, process } = app;
        let gpu = gpu_uuid.as_deref().unwrap_or("-");
        format!("{gpu}  pid {}  {} MiB  {}", process.pid, process.mem_used_mib, process.name)
    };
    let (rows, smi_errors) = if fixture.name.starts_with("apps") {
        let Output { rows, smi_errors } = read_compute_apps(&fixture.text, fixture.status);
        (rows.iter().map(app).collect::<Vec<_>>(), smi_errors)
    } else {
        let Output { rows, smi_errors } = GpuQuery::default().read(&fixture.text, fixture.status, 1.0);
        (rows.iter().map(sample).collect(), smi_errors)
    };
    let smi_errors = smi_errors.iter().map(|error| format!("! {error}\n  hint: {}", error.fix()));
    rows.into_iter().chain(smi_errors).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_output_matches_its_snapshot() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 30, "the fixtures have moved: {} in {FIXTURES}", fixtures.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../../tests/fixtures/nvidia-smi");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for fixture in fixtures {
            insta::assert_snapshot!(fixture.name.clone(), shown(&fixture));
        }
    });
}

#[test]
fn a_busy_node_has_eight_numbers_for_each_of_eight_gpus() {
    let Output { rows, smi_errors } = samples("busy");
    assert_eq!((rows.len(), smi_errors.len()), (8, 0));
    assert_eq!(rows[3].power_w, Reading::Value(665.21));
    assert_eq!(rows[3].throttle_reasons, Reading::Value(ThrottleReasons(0)));
}

#[test]
fn a_cell_without_a_number_is_never_zero() {
    for fixture in fixtures().iter().filter(|f| !f.name.starts_with("apps")) {
        for row in GpuQuery::default().read(&fixture.text, fixture.status, 1.0).rows {
            for reading in [&row.power_w, &row.power_limit_w, &row.temp_c, &row.sm_clock_mhz] {
                assert_ne!(reading.value(), Some(0.0), "{}", fixture.name);
            }
        }
    }
}

#[test]
fn every_sample_survives_a_round_trip() {
    for fixture in fixtures() {
        for sample in GpuQuery::default().read(&fixture.text, fixture.status, 1763612345.125).rows {
            let json = serde_json::to_string(&sample).unwrap();
            assert_eq!(serde_json::from_str::<GpuSample>(&json).unwrap(), sample, "{}", fixture.name);
        }
    }
}

#[test]
fn a_lost_gpu_removes_only_its_own_row() {
    for name in ["lost_row", "lost_device"] {
        let Output { rows, smi_errors } = samples(name);
        let powers: Vec<_> = rows.iter().filter_map(|row| row.power_w.value()).collect();
        assert_eq!(powers, [655.1, 661.84], "{name}");
        let lost = rows.iter().any(|row| row.index == 1 && row.power_w == Reading::Absent(Absent::GpuIsLost));
        let reported =
            smi_errors.iter().any(|t| matches!(t, SmiError::GpuLost { gpu, .. } if gpu.is_at("00000000:2d:00.0")));
        assert!(lost || reported, "{name}");
    }
}

#[test]
fn warnings_beside_rows_leave_the_rows_complete_and_failures_do_not() {
    let failure = |name: &str| match fixture(name) {
        Fixture { text, status, .. } if name.starts_with("apps") => read_compute_apps(&text, status).failure().cloned(),
        Fixture { text, status, .. } => GpuQuery::default().read(&text, status, 1.0).failure().cloned(),
    };
    for complete in [
        "info_rom",
        "info_rom_without_message",
        "linker_messages",
        "noise",
        "lost_row_and_status",
        "apps_info_rom",
        "apps_linker_messages",
        "apps_other_warning",
    ] {
        assert_eq!(failure(complete), None, "{complete}");
    }
    for incomplete in
        ["no_rows", "lost_device", "fallen_off_without_message", "hidden_device", "apps_failed", "apps_half"]
    {
        assert!(failure(incomplete).is_some(), "{incomplete}");
    }
}

#[test]
fn every_documented_exit_status_without_a_message_is_explained() {
    for status in [2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15, 255] {
        let failure = GpuQuery::default().read("", Some(status), 1.0).failure().cloned();
        let shown = failure.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(shown.ends_with("and no message"), status == 255, "{status}: {shown}");
        assert!(!shown.is_empty());
    }
}

#[test]
fn an_unknown_field_is_queried_by_its_former_name_and_then_skipped() {
    let Output { smi_errors, .. } = samples("unknown_field");
    let [SmiError::UnknownField(field)] = &smi_errors[..] else { panic!("{smi_errors:?}") };
    let former = GpuQuery::default().without(field).unwrap();
    assert!(former.to_string().contains(",clocks_throttle_reasons.active,mig.mode.current,"));
    let none = former.without("clocks_throttle_reasons.active").unwrap();
    assert_eq!(none.without("clocks_throttle_reasons.active"), None);

    let row =
        "0, GPU-1, NVIDIA H100, 00000000:19:00.0, 70.00, 700.00, 0, 81559, 0, 31, 345, 0, Disabled, [N/A], 5, 16\n";
    let Output { rows, smi_errors } = none.read(row, Some(0), 1.0);
    assert_eq!(smi_errors, []);
    assert_eq!(rows[0].throttle_reasons, Reading::Absent(Absent::NotAsked));
    assert_eq!(rows[0].sm_clock_mhz, Reading::Value(345.0));
}

#[test]
fn the_fan_and_the_pcie_link_are_read_and_a_driver_without_these_fields_still_has_rows() {
    let rows = samples("not_available").rows;
    assert_eq!(
        (rows[0].fan_pct.value(), rows[0].pcie_gen.value(), rows[0].pcie_lanes.value()),
        (Some(31.0), Some(4), Some(16))
    );
    assert_eq!(
        (rows[1].fan_pct.absent(), rows[1].pcie_gen.absent()),
        (Some(&Absent::NotSupported), Some(&Absent::NotAvailable))
    );
    assert_eq!(samples("with_units").rows[0].fan_pct, Reading::Value(45.0));

    let fields = ["fan.speed", "pcie.link.gen.current", "pcie.link.width.current"];
    let older = fields.iter().fold(GpuQuery::default(), |query, field| query.without(field).unwrap());
    let row = "0, GPU-1, NVIDIA H100, 00000000:19:00.0, 70.00, 700.00, 0, 81559, 0, 31, 345, 0, 0x1, Disabled\n";
    let Output { rows, smi_errors } = older.read(row, Some(0), 1.0);
    assert_eq!((rows[0].temp_c.value(), rows[0].fan_pct.absent()), (Some(31.0), Some(&Absent::NotAsked)));
    assert_eq!(smi_errors, []);
}

#[test]
fn the_query_has_every_field_once() {
    let argument = GpuQuery::default().to_string();
    assert_eq!(
        argument,
        "--query-gpu=index,uuid,name,pci.bus_id,power.draw,power.limit,memory.used,memory.total,utilization.gpu,temperature.gpu,\
         clocks.sm,ecc.errors.uncorrected.volatile.total,clocks_event_reasons.active,mig.mode.current,fan.speed,\
         pcie.link.gen.current,pcie.link.width.current"
    );
}

proptest! {
    #[test]
    fn no_output_panics(text in any::<String>(), status in any::<Option<i32>>()) {
        GpuQuery::default().read(&text, status, 0.0);
        read_compute_apps(&text, status);
    }

    #[test]
    fn no_damaged_output_panics(which in 0usize..30, at in any::<prop::sample::Index>(), with in r"[,\[\]\n0-9 ]{0,6}|GPU|.{0,3}", cut in any::<bool>()) {
        let fixtures = fixtures();
        let text = &fixtures[which % fixtures.len()].text;
        let mut at = at.index(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let damaged = format!("{}{with}{}", &text[..at], if cut { "" } else { &text[at..] });
        GpuQuery::default().read(&damaged, None, 0.0);
        read_compute_apps(&damaged, None);
    }

    #[test]
    fn a_truncated_output_has_no_value_that_the_complete_output_lacks(at in any::<prop::sample::Index>()) {
        let text = fixture("busy").text;
        let whole = GpuQuery::default().read(&text, None, 0.0).rows;
        let torn = GpuQuery::default().read(&text[..at.index(text.len())], None, 0.0).rows;
        prop_assert_eq!(&torn[..], &whole[..torn.len()]);
    }
}
