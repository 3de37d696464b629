use super::*;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::net::TcpListener;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// A registry on the loopback with one repository.
#[derive(Default)]
struct Content {
    /// Documents by tag and digest, and blobs by digest.
    objects: BTreeMap<String, Vec<u8>>,
    /// After so many bytes a blob's transfer is cut, once.
    cut: Option<usize>,
    /// A range is answered with the whole blob.
    ignores_ranges: bool,
    /// Answers instead of documents and blobs, each to one request whose path has this part.
    busy: Vec<(&'static str, u16, &'static str)>,
    /// The value that `Authorization` must have.
    credentials: Option<String>,
    asked: Vec<String>,
}

struct Registry {
    content: Arc<Mutex<Content>>,
    address: String,
    folder: TempDir,
}

type Answer = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

fn whole(content: Vec<u8>) -> Answer {
    Full::new(Bytes::from(content)).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn answer(content: &Mutex<Content>, asked: &Request<Incoming>) -> Response<Answer> {
    let mut content = content.lock().unwrap();
    let path = asked.uri().path().to_owned();
    let header = |name: &str| asked.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let range = header("range");
    let line = format!("{path}{}", range.as_ref().map(|range| format!(" {range}")).unwrap_or_default());
    content.asked.push(line.clone());
    let code = |code: StatusCode| Response::builder().status(code);
    if let Some(credentials) = &content.credentials
        && header("authorization").as_ref() != Some(credentials)
    {
        let realm = r#"Basic realm="test""#;
        return code(StatusCode::UNAUTHORIZED)
            .header("www-authenticate", realm)
            .body(whole(Vec::new()))
            .unwrap();
    }
    if let Some(place) = content.busy.iter().position(|(part, _, _)| line.contains(part)) {
        let (_, status, text) = content.busy.remove(place);
        return code(StatusCode::from_u16(status).unwrap()).body(whole(text.as_bytes().to_vec())).unwrap();
    }
    let object = path.rsplit('/').next().and_then(|name| content.objects.get(name)).cloned();
    let Some(mut object) = object else {
        return code(StatusCode::NOT_FOUND).body(whole(b"{\"errors\":[]}".to_vec())).unwrap();
    };
    if path.contains("/manifests/") {
        return code(StatusCode::OK).header("content-type", "application/json").body(whole(object)).unwrap();
    }
    let from = range
        .filter(|_| !content.ignores_ranges)
        .map(|range| range.trim_start_matches("bytes=").split('-').next().unwrap().parse::<usize>().unwrap());
    let status = if from.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    object.drain(..from.unwrap_or(0));
    let length = object.len();
    let body = match content.cut.filter(|bytes| *bytes < length) {
        Some(bytes) => {
            content.cut = None;
            object.truncate(bytes);
            let data = futures_util::stream::iter([Ok(Frame::data(Bytes::from(object)))]);
            // What came before the error is sent while the body waits.
            let cut = futures_util::stream::once(async {
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut"))
            });
            StreamBody::new(data.chain(cut)).boxed_unsync()
        }
        None => whole(object),
    };
    code(status).header("content-length", length).body(body).unwrap()
}

impl Registry {
    /// One with an image for two platforms under the tag `1`. Gives its layers, of which the other platform has none.
    async fn start() -> (Self, Vec<Vec<u8>>) {
        let layers = vec![vec![b'a'; 100_000], b"second layer".to_vec()];
        let config = b"{}".to_vec();
        let blob = |content: &[u8], media_type: &str| json!({"mediaType": media_type, "digest": digest(content), "size": content.len()});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": blob(&config, "application/vnd.oci.image.config.v1+json"),
            "layers": layers.iter().map(|layer| blob(layer, "application/vnd.oci.image.layer.v1.tar")).collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        let mut own = blob(&manifest, MANIFEST);
        own["platform"] = json!({"os": "linux", "architecture": "amd64"});
        let mut other = blob(b"other", MANIFEST);
        other["platform"] = json!({"os": "linux", "architecture": "arm64", "variant": "v8"});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, own]})
            .to_string()
            .into_bytes();
        let mut content = Content::default();
        content.objects.insert("1".to_owned(), index.clone());
        for object in layers.iter().chain([&config, &manifest, &index]) {
            content.objects.insert(digest(object), object.clone());
        }
        (Self::with(content).await, layers)
    }

    async fn with(content: Content) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let content = Arc::new(Mutex::new(content));
        let shared = Arc::clone(&content);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |asked| {
                        let answer = answer(&shared, &asked);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    // A cut transfer ends the connection with an error.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { content, address, folder: tempfile::tempdir().unwrap() }
    }

    fn layout(&self) -> std::path::PathBuf {
        self.folder.path().join("layout")
    }

    async fn pull_for(&self, platform: &str, authfile: Option<&Path>) -> Result<Pulled, PullError> {
        let options = PullOptions {
            reference: format!("{}/team/os:1", self.address),
            directory: self.layout(),
            platform: platform.parse().unwrap(),
            authfile: authfile.map(Path::to_owned),
            authority: None,
            is_plain: true,
        };
        pull(options, |_| ()).await
    }

    async fn pull(&self) -> Result<Pulled, PullError> {
        self.pull_for("linux/amd64", None).await
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.content.lock().unwrap().asked)
    }

    /// The error of a pull, which left no image and no part of a blob.
    async fn refused(&self) -> String {
        let error = anyhow::Error::from(self.pull().await.unwrap_err());
        assert!(!self.layout().join("index.json").exists());
        for entry in std::fs::read_dir(self.layout().join("blobs/sha256")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with("partial"), "{name} is left");
        }
        format!("{error:#}")
    }
}

#[tokio::test]
async fn a_pull_makes_a_layout_with_the_image_of_the_platform_and_a_second_one_transfers_nothing() {
    let (registry, layers) = Registry::start().await;
    let pulled = registry.pull().await.unwrap();
    assert_eq!((pulled.layers, pulled.transferred), (2, pulled.bytes));
    assert_ne!(pulled.digest, pulled.manifest, "the index and the manifest of the platform");
    let read = |path: &str| std::fs::read(registry.layout().join(path)).unwrap();
    let version: Value = serde_json::from_slice(&read("oci-layout")).unwrap();
    assert_eq!(version["imageLayoutVersion"], "1.0.0");
    let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
    assert_eq!(index["manifests"][0]["digest"], pulled.digest);
    assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], pulled.reference);
    for content in
        layers.iter().map(|layer| digest(layer)).chain([pulled.digest.clone(), pulled.manifest.clone()])
    {
        let file = read(&format!("blobs/sha256/{}", content.trim_start_matches("sha256:")));
        assert_eq!(digest(&file), content);
    }

    registry.asked();
    let again = registry.pull().await.unwrap();
    assert_eq!(again.transferred, 0);
    assert!(registry.asked().iter().all(|asked| !asked.contains("/blobs/")));
    let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1, "the image has its name once");
}

#[tokio::test]
async fn a_transfer_that_breaks_off_goes_on_where_it_was_or_begins_anew_if_the_registry_knows_no_ranges() {
    for ignores_ranges in [false, true] {
        let (registry, layers) = Registry::start().await;
        {
            let mut content = registry.content.lock().unwrap();
            content.cut = Some(40_000);
            content.ignores_ranges = ignores_ranges;
        }
        let pulled = registry.pull().await.unwrap();
        assert_eq!(pulled.transferred, pulled.bytes);
        let asked = registry.asked();
        let ranges: Vec<&String> = asked.iter().filter(|asked| asked.contains(" bytes=")).collect();
        assert_eq!(ranges.len(), 1, "{asked:?}");
        assert!(ranges[0].contains(&digest(&layers[0])), "{ranges:?}");
    }
}

const TOO_MANY: &str = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;

#[tokio::test]
async fn a_registry_that_is_busy_is_asked_again_for_a_document_or_a_blob() {
    let (registry, layers) = Registry::start().await;
    registry.content.lock().unwrap().busy =
        vec![("/manifests/1", 502, "bad gateway"), ("/blobs/", 503, ""), ("/blobs/", 429, TOO_MANY)];
    let pulled = registry.pull().await.unwrap();
    assert_eq!(pulled.transferred, pulled.bytes);
    let asked = registry.asked();
    let count = |part: &str| asked.iter().filter(|asked| asked.contains(part)).count();
    assert_eq!((count("/manifests/1"), count("/blobs/")), (2, layers.len() + 1 + 2), "{asked:?}");
    // Also in the middle of a transfer, which goes on where it was.
    let (registry, _) = Registry::start().await;
    {
        let mut content = registry.content.lock().unwrap();
        content.cut = Some(40_000);
        content.busy = vec![(" bytes=", 429, "")];
    }
    registry.pull().await.unwrap();
    let asked = registry.asked();
    assert_eq!(asked.iter().filter(|asked| asked.contains(" bytes=")).count(), 2, "{asked:?}");
}

#[tokio::test]
async fn an_answer_that_no_other_attempt_changes_ends_the_pull_at_once() {
    for (part, status) in [("/blobs/", 500), ("/blobs/", 403), ("/manifests/1", 404)] {
        let (registry, _) = Registry::start().await;
        registry.content.lock().unwrap().busy = vec![(part, status, "no")];
        let error = registry.refused().await;
        assert!(error.contains("the registry did not give the"), "{error}");
        let asked = registry.asked();
        assert_eq!(asked.iter().filter(|asked| asked.contains(part)).count(), 1, "{status}: {asked:?}");
    }
}

#[tokio::test]
async fn a_blob_or_a_document_with_another_content_is_refused_and_nothing_of_it_stays() {
    let (registry, layers) = Registry::start().await;
    let second = digest(&layers[1]);
    for wrong in [&b"second lAyer"[..], b"second", b"second layer and more"] {
        registry.content.lock().unwrap().objects.insert(second.clone(), wrong.to_vec());
        let error = registry.refused().await;
        assert!(error.contains(&second), "{error}");
    }
    let (registry, _) = Registry::start().await;
    let manifest = registry.pull().await.unwrap().manifest;
    std::fs::remove_dir_all(registry.layout()).unwrap();
    registry.content.lock().unwrap().objects.insert(manifest.clone(), b"{\"schemaVersion\":2}".to_vec());
    let error = registry.refused().await;
    assert!(error.contains(&manifest), "{error}");
}

#[tokio::test]
async fn a_platform_that_the_image_does_not_have_is_an_error_that_lists_those_that_it_has() {
    let (registry, _) = Registry::start().await;
    let error = registry.pull_for("linux/s390x", None).await.unwrap_err().to_string();
    assert!(error.contains("linux/s390x") && error.contains("linux/arm64/v8, linux/amd64"), "{error}");
}

#[tokio::test]
async fn credentials_come_from_the_authfile_and_without_them_the_registry_refuses() {
    let (registry, _) = Registry::start().await;
    let encoded = "dXNlcjpwYXNz";
    registry.content.lock().unwrap().credentials = Some(format!("Basic {encoded}"));
    let error = registry.refused().await;
    assert!(error.contains("the registry did not give the manifest"), "{error}");
    let file = registry.folder.path().join("auth.json");
    let auths = json!({"auths": {&registry.address: {"auth": encoded}}});
    std::fs::write(&file, auths.to_string()).unwrap();
    registry.pull_for("linux/amd64", Some(&file)).await.unwrap();
}

#[tokio::test]
async fn a_directory_with_something_else_is_left_as_it_is() {
    let (registry, _) = Registry::start().await;
    std::fs::create_dir_all(registry.layout()).unwrap();
    std::fs::write(registry.layout().join("notes"), "mine").unwrap();
    let error = registry.pull().await.unwrap_err();
    assert!(matches!(error, PullError::NotALayout { .. }), "{error}");
    assert_eq!(std::fs::read_dir(registry.layout()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_damaged_blob_of_an_earlier_pull_is_transferred_again() {
    let (registry, layers) = Registry::start().await;
    registry.pull().await.unwrap();
    let name = digest(&layers[0]).replace("sha256:", "blobs/sha256/");
    std::fs::write(registry.layout().join(&name), "damaged").unwrap();
    assert_eq!(registry.pull().await.unwrap().transferred, layers[0].len() as u64);
    assert_eq!(std::fs::read(registry.layout().join(name)).unwrap(), layers[0]);
}

#[tokio::test]
async fn an_index_within_itself_and_a_text_that_is_no_reference_are_errors() {
    let own = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).to_string();
    let mut content = Content::default();
    content.objects.insert("1".to_owned(), own.into_bytes());
    let registry = Registry::with(content).await;
    let error = registry.refused().await;
    assert!(error.contains("none with a platform"), "{error}");
    let options = PullOptions {
        reference: "Not a reference".to_owned(),
        directory: registry.layout(),
        platform: Platform::here(),
        authfile: None,
        authority: None,
        is_plain: true,
    };
    assert!(matches!(pull(options, |_| ()).await, Err(PullError::Reference { .. })));
}

#[tokio::test]
async fn no_link_in_a_layout_of_another_user_leads_a_pull_to_another_file() {
    let (registry, layers) = Registry::start().await;
    registry.pull().await.unwrap();
    let victim = registry.folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let blobs = registry.layout().join("blobs/sha256");
    let name = digest(&layers[1]).replace("sha256:", "");
    std::fs::remove_file(blobs.join(&name)).unwrap();
    for link in [blobs.join(format!(".{name}.partial")), registry.layout().join(".index.json.partial")] {
        std::os::unix::fs::symlink(&victim, link).unwrap();
    }
    registry.pull().await.unwrap();
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious");
    assert_eq!(std::fs::read(blobs.join(name)).unwrap(), layers[1]);
}
