//! Tests of diffusers models whose tensors have the prefixes of wrappers, or are in files that `torch.save` wrote.

use super::*;
use crate::fixtures::{temp, write_torch};

/// Converts the small model as it is.
fn expected(folder: &Utf8Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    go(&ConvertRequest::new(small(), folder.join("expected"), Form::Internal)).unwrap();
    of(&folder.join("expected"))
}

#[test]
fn the_prefixes_of_wrappers_are_removed() {
    let renames: [fn(&str) -> String; 7] = [
        |name| format!("module.{name}"),
        |name| format!("_orig_mod.{name}"),
        |name| format!("transformer.{name}"),
        |name| format!("model.diffusion_model.{name}"),
        |name| format!("_fsdp_wrapped_module.module.{name}"),
        |name| name.replace("blocks.1.", "blocks.1._orig_mod."),
        |name| format!("module.{}", name.replace("blocks.0.", "blocks.0._checkpoint_wrapped_module.")),
    ];
    for rename in renames {
        let (_keep, folder) = temp();
        let model = changed(&folder, |tensors| {
            *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        });
        // A checkpoint has its own names, so that no file can be linked.
        let place = folder.join("x");
        go(&ConvertRequest { link: true, ..ConvertRequest::new(&model, &place, Form::Internal) }).unwrap();
        assert!(of(&place) == expected(&folder), "{}", rename("NAME"));
        assert!(crate::inspect(&model, false).unwrap().complete);
    }
}

#[test]
fn a_tensor_that_is_there_with_and_without_a_prefix_is_refused() {
    let (_keep, folder) = temp();
    let model = changed(&folder, |tensors| {
        let bias = tensors["proj_out.bias"].clone();
        let wrapped = std::mem::take(tensors).into_iter().map(|(name, tensor)| (format!("module.{name}"), tensor));
        *tensors = wrapped.collect();
        tensors.insert("proj_out.bias".into(), bias);
    });
    let failure = go(&ConvertRequest::new(&model, folder.join("x"), Form::Internal)).unwrap_err();
    assert_eq!(failure.code, ErrorCode::TensorMismatch, "{failure}");
}

#[test]
fn weights_of_torch_save_are_read_with_the_configuration_beside_them() {
    let (_keep, folder) = temp();
    let model = folder.join("old");
    fs::create_dir(&model).unwrap();
    fs::copy(small().join("config.json"), model.join("config.json")).unwrap();
    let tensors: Vec<_> = of(&small()).into_iter().map(|(name, (_, shape, data))| (name, shape, data)).collect();
    let file = model.join("diffusion_pytorch_model.bin");
    write_torch(&file, &tensors);
    for (n, path) in [&model, &file].into_iter().enumerate() {
        let place = folder.join(format!("x-{n}"));
        let request = ConvertRequest { link: true, ..ConvertRequest::new(path, &place, Form::Internal) };
        assert!(plan_conversion(&request).unwrap().links.is_empty(), "a checkpoint has safetensors only");
        go(&request).unwrap();
        assert!(of(&place) == expected(&folder), "{path}");
        fs::remove_dir_all(folder.join("expected")).unwrap();
    }
}
