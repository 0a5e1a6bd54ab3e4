//! PCI addresses of GPUs, which nvidia-smi and the driver write differently: `00000000:19:00.0`, `0000:19:00`, `19:00`.

/// Returns domain, bus and device of an address. The domain is none if the address has none, as in old kernel logs.
fn parts(address: &str) -> Option<(Option<u32>, u32, u32)> {
    let (place, _function) = address.rsplit_once('.').unwrap_or((address, ""));
    let numbers = place.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect::<Option<Vec<_>>>()?;
    match numbers[..] {
        [domain, bus, device] => Some((Some(domain), bus, device)),
        [bus, device] => Some((None, bus, device)),
        _ => None,
    }
}

/// Returns whether a text is an address.
pub fn is_address(text: &str) -> bool {
    parts(text).is_some()
}

/// Returns whether two addresses are those of one device. An address without a domain fits every domain.
pub fn is_same(one: &str, other: &str) -> bool {
    let (Some((domain, bus, device)), Some((other_domain, other_bus, other_device))) = (parts(one), parts(other))
    else {
        return false;
    };
    let is_same_domain = domain.zip(other_domain).is_none_or(|(one, other)| one == other);
    is_same_domain && (bus, device) == (other_bus, other_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_gpu_are_equal_in_every_form() {
        let listed = "00000000:3B:00.0";
        for same in ["0000:3b:00", "0000:3b:00.0", "3b:00", "003b:00", "00000000:3B:00.0"] {
            assert!(is_same(listed, same), "{same}");
        }
        for other in
            ["0001:3b:00", "0000:b:00", "0000:3b:01", "0000:13b:00", "", "00", "GPU-a", "0:0000:3b:00", "3b:zz"]
        {
            assert!(!is_same(listed, other), "{other}");
        }
        assert!(is_same("0009:01:00", "00000009:01:00.0") && !is_same("0009:01:00", "00000008:01:00.0"));
    }
}
