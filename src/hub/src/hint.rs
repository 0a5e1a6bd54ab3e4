//! Finds the command that downloads missing weights, and the folder of downloaded weights.

use crate::Cache;
use crate::kind::Kind;
use camino::{Utf8Path, Utf8PathBuf};

/// The models whose owner, zai-org, may be omitted.
const RELEASED: [&str; 5] =
    ["CogVideoX-2b", "CogVideoX-5b", "CogVideoX-5b-I2V", "CogVideoX1.5-5B", "CogVideoX1.5-5B-I2V"];

/// Returns the command that downloads a missing folder, if its name looks like that of a model on the Hub.
pub fn fetch_command(named: &str) -> Option<String> {
    let is_name = |part: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    match &named.trim_end_matches('/').split('/').collect::<Vec<_>>()[..] {
        [owner, name] if is_name(owner) && is_name(name) => Some(format!("vidtui fetch {owner}/{name}")),
        [.., name] => {
            let released = RELEASED.iter().find(|released| released.eq_ignore_ascii_case(name))?;
            Some(format!("vidtui fetch zai-org/{released}"))
        }
        [] => None,
    }
}

/// Returns the folder of a downloaded model in a cache. Accepts the same names as [`fetch_command`].
pub fn fetched(named: &str, cache: &Utf8Path) -> Option<Utf8PathBuf> {
    let model = fetch_command(named)?.rsplit(' ').next()?.to_owned();
    let cache = Cache::new(cache, Kind::Model, &model);
    Some(cache.snapshot(&cache.commit("main")?)).filter(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_give_a_download_command() {
        let command = |named| fetch_command(named);
        assert_eq!(command("THUDM/CogVideoX-2b").as_deref(), Some("vidtui fetch THUDM/CogVideoX-2b"));
        assert_eq!(command("CogVideoX-5b/").as_deref(), Some("vidtui fetch zai-org/CogVideoX-5b"));
        assert_eq!(command("/data/cogvideox1.5-5b").as_deref(), Some("vidtui fetch zai-org/CogVideoX1.5-5B"));
        assert_eq!(command("/data/cogvideox-fun-5b-inp"), None, "no model of the Hub has this name");
        assert_eq!(
            (command("./weights"), command("/data/weights"), command("weights"), command("")),
            (None, None, None, None)
        );
    }
}
