//! Who made a change, in fields and in a few words.

use crate::api::ChangedBy;
use crate::text::fit;
use sensor_model::record::Actor;
use std::collections::BTreeMap;

/// Longest path of an executable, in bytes of JSON.
const PROCESS_BYTES: usize = 256;
/// Longest name of a user, unit or pod. Kubernetes allows 253 characters in a pod's name.
const NAME_BYTES: usize = 253;
/// Longest id of a pod or a container.
const ID_BYTES: usize = 64;
/// Longest text of who made a change.
const BY_BYTES: usize = 300;
/// Characters of a container's id in a text.
const SHORT_ID: usize = 12;

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The names that the API server knows of pods and their containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodNames {
    /// Pods by their uids.
    pub pods: BTreeMap<String, PodName>,
    /// Names of containers by their ids, 64 hexadecimal digits.
    pub containers: BTreeMap<String, String>,
}

impl PodNames {
    /// Whether the pod of this uid, or the container of this id, has a name here.
    pub fn has(&self, id: &str) -> bool {
        self.pods.contains_key(id) || self.containers.contains_key(id)
    }

    /// Writes the names of an actor's pod and container. A pod or container without a name in these maps keeps its
    /// present name.
    pub(super) fn name(&self, by: &mut ChangedBy) {
        let Some(pod) = by.pod_uid.as_ref().and_then(|uid| self.pods.get(uid)) else { return };
        by.pod_namespace = Some(pod.namespace.clone());
        by.pod_name = Some(pod.name.clone());
        if let Some(name) = by.container_id.as_ref().and_then(|id| self.containers.get(id)) {
            by.container_name = Some(name.clone());
        }
    }
}

/// The actor's fields, without the names of pod and container.
pub(super) fn changed_by(actor: &Actor) -> ChangedBy {
    let name = |text: &Option<String>, limit| text.as_deref().map(|text| fit(text, limit));
    ChangedBy {
        process: name(&actor.exe, PROCESS_BYTES),
        pid: actor.pid.into(),
        uid: actor.uid.into(),
        login_user: name(&actor.login_user, NAME_BYTES),
        login_uid: actor.login_uid.map(Into::into),
        unit: name(&actor.unit, NAME_BYTES),
        pod_namespace: None,
        pod_name: None,
        pod_uid: name(&actor.pod_uid, ID_BYTES),
        container_name: None,
        container_id: name(&actor.container_id, ID_BYTES),
        holdfast: actor.holdfast,
    }
}

/// Who made a change, in a few words: `root login alice via vi`, `pod default/web container app via sh`, `chronyd.service via chronyd`.
///
/// A container comes before a login: its processes inherit the login of the user who started the container runtime.
pub fn by(changed_by: Option<&ChangedBy>) -> String {
    let Some(by) = changed_by else { return "an unknown actor".to_owned() };
    if by.holdfast {
        return "Holdfast".to_owned();
    }
    let user = if by.uid == 0 { "root".to_owned() } else { format!("uid {}", by.uid) };
    let actor = match by {
        ChangedBy { pod_namespace: Some(namespace), pod_name: Some(name), .. } => {
            let container = by.container_name.as_ref().map(|container| format!(" container {container}"));
            format!("pod {namespace}/{name}{}", container.unwrap_or_default())
        }
        ChangedBy { pod_uid: Some(uid), .. } => format!("pod {uid}"),
        ChangedBy { container_id: Some(id), .. } => {
            format!("container {}", id.chars().take(SHORT_ID).collect::<String>())
        }
        ChangedBy { login_user: Some(login), .. } => format!("{user} login {login}"),
        ChangedBy { login_uid: Some(login), .. } => format!("{user} login uid {login}"),
        ChangedBy { unit: Some(unit), .. } => unit.clone(),
        _ => user,
    };
    let program =
        by.process.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
    let text = match program {
        Some(program) => format!("{actor} via {program}"),
        None => actor,
    };
    fit(&text, BY_BYTES)
}

/// The same for an actor of the forensic log. A pod without a name in `names` has its uid in the text.
pub fn actor_text(actor: &Actor, names: &PodNames) -> String {
    let mut changed_by = changed_by(actor);
    names.name(&mut changed_by);
    by(Some(&changed_by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_known_stays_where_another_answer_has_none() {
        let pod = PodName { namespace: "team".to_owned(), name: "web".to_owned() };
        let pods: BTreeMap<_, _> = [("u-1".to_owned(), pod)].into();
        let containers = [("c-1".to_owned(), "app".to_owned())].into();
        let without_containers = PodNames { pods: pods.clone(), containers: BTreeMap::new() };
        let mut by = ChangedBy {
            pod_uid: Some("u-1".to_owned()),
            container_id: Some("c-1".to_owned()),
            ..ChangedBy::default()
        };
        for names in [PodNames { pods, containers }, without_containers, PodNames::default()] {
            names.name(&mut by);
            assert_eq!((by.pod_name.as_deref(), by.container_name.as_deref()), (Some("web"), Some("app")));
        }
    }
}
