//! A control plane on this machine's loopback: etcd, API server, controller manager and scheduler.
//!
//! In: the programs, and the names of the nodes that will join. Out: a cluster that is ready, and configs with which its users
//! reach it from here or from a guest. Tests kill and restart the API server. All of it ends with its value, and its folder is
//! removed. The logs stay in `target/kube-logs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use tempfile::TempDir;

use super::process::LoggedProcess;
use super::{KubeAssets, RELEASE};
use crate::dist;
use crate::run::output;

/// Longest time until a part is ready, on a machine that is busy with compilers and guests.
const LIMIT: Duration = Duration::from_mins(3);
/// The address of this machine's loopback as a guest sees it, by QEMU's user-mode network.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The addresses of services. No guest has one of these.
const SERVICES: &str = "10.96.0.0/16";
/// What names the cluster in the tokens of service accounts.
const ISSUER: &str = "https://kubernetes.default.svc";
/// How much garbage the parts keep, in percent of what they use. With Go's own 100 the API servers of the tests took a sixth more
/// processor time, and memory is not scarce here.
const GARBAGE: (&str, &str) = ("GOGC", "400");
/// Bytes of randomness in a token.
const TOKEN: usize = 16;

/// Who uses the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User<'a> {
    /// May do everything (group `system:masters`).
    Admin,
    /// The kubelet of this node (`system:node:NAME`, group `system:nodes`).
    Node(&'a str),
}

impl User<'_> {
    fn name(self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::Node(name) => format!("system:node:{name}"),
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Node(_) => "system:nodes",
        }
    }
}

/// Where a client of the API runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientPlace {
    /// On this machine.
    Host,
    /// In a guest with QEMU's user-mode network.
    Guest,
}

/// What a control plane is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The folder of its logs in `target/kube-logs`, or in the folder of the tested release there.
    pub(crate) name: &'a str,
    /// Nodes whose kubelets get a token. The API server reads the tokens once.
    pub(crate) nodes: &'a [&'a str],
    /// More flags of the API server.
    pub(crate) apiserver: &'a [&'a str],
}

/// A running control plane. Its fields are dropped in their order, and so the folder last.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    scheduler: Option<LoggedProcess>,
    controller_manager: Option<LoggedProcess>,
    apiserver: Option<LoggedProcess>,
    etcd: Option<LoggedProcess>,
    assets: KubeAssets,
    ports: Ports,
    /// Flags of the API server that the caller adds.
    more: Vec<String>,
    /// Tokens by the users' names.
    tokens: BTreeMap<String, String>,
    logs: PathBuf,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts all four and waits until the API server is ready.
    pub(crate) fn start(assets: &KubeAssets, wanted: Wanted<'_>) -> Result<Self> {
        let release = std::env::var(RELEASE).unwrap_or_default();
        let logs = dist::root().join("target/kube-logs").join(release).join(wanted.name);
        crate::cache::remove_tree(&logs)?;
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let mut plane = Self {
            scheduler: None,
            controller_manager: None,
            apiserver: None,
            etcd: None,
            assets: assets.clone(),
            ports: Ports::free()?,
            more: wanted.apiserver.iter().map(|&flag| flag.to_owned()).collect(),
            tokens: BTreeMap::new(),
            logs,
            folder: tempfile::Builder::new().prefix("holdfast-kube-").tempdir()?,
        };
        plane.make_users(wanted.nodes)?;
        plane.start_etcd()?;
        plane.start_apiserver()?;
        plane.start_controllers()?;
        Ok(plane)
    }

    /// `kubectl` as the admin.
    pub(crate) fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.assets.kubectl);
        // Its caches would otherwise be in the user's home, where another cluster at the same port may have left its own.
        command
            .env("KUBECONFIG", self.admin_config())
            .env("KUBECACHEDIR", self.path("kubectl"))
            .env("HOME", self.folder.path())
            .envs([GARBAGE]);
        command
    }

    /// Starts `kubectl proxy`, through which a client reads the API as the admin without TLS. Gives its port on the loopback.
    pub(crate) fn proxy(&self) -> Result<(LoggedProcess, u16)> {
        let [port] = free_ports()?;
        let mut proxy = self.kubectl();
        proxy.args(["proxy", "--port", &port.to_string()]);
        let proxy = LoggedProcess::start("kubectl proxy", &mut proxy, &self.log("proxy"))?;
        proxy.until(LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("it does not listen").map(drop)
        })?;
        Ok((proxy, port))
    }

    /// The file with the admin's config for clients on this machine.
    pub(crate) fn admin_config(&self) -> PathBuf {
        self.path("admin.kubeconfig")
    }

    /// Waits until something is so that the controllers bring about.
    pub(crate) fn until(&self, limit: Duration, is_so: impl FnMut() -> Result<()>) -> Result<()> {
        self.controller_manager.as_ref().context("no controller manager")?.until(limit, is_so)
    }

    /// The file of the log of a part, or of a program that belongs to this cluster.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// The port of the API server.
    pub(crate) fn port(&self) -> u16 {
        self.ports.apiserver
    }

    /// The config with which a user reaches the API server.
    pub(crate) fn kubeconfig(&self, user: User<'_>, place: ClientPlace) -> Result<String> {
        let name = user.name();
        let token =
            self.tokens.get(&name).with_context(|| format!("the cluster was started without {name}"))?;
        self.config_with(&name, token, place)
    }

    /// The config with which the owner of a token reaches the API server.
    pub(crate) fn config_with(&self, name: &str, token: &str, place: ClientPlace) -> Result<String> {
        let address = match place {
            ClientPlace::Host => Ipv4Addr::LOCALHOST,
            ClientPlace::Guest => GATEWAY,
        };
        // JSON is YAML.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://{address}:{}", self.ports.apiserver),
                "certificate-authority-data": BASE64.encode(self.certificate()?),
            }}],
            "users": [{ "name": name, "user": { "token": token } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": name } }],
            "current-context": "test",
        });
        Ok(serde_json::to_string_pretty(&config)?)
    }

    /// The certificate that the API server made for itself, in PEM.
    pub(crate) fn certificate(&self) -> Result<Vec<u8>> {
        let path = self.certificate_path();
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn certificate_path(&self) -> PathBuf {
        self.path("certificates/apiserver.crt")
    }

    /// Starts a part. Its folder is a file's default place.
    fn run(&self, name: &'static str, program: &Path, flags: &[String]) -> Result<LoggedProcess> {
        let mut command = Command::new(program);
        command.args(flags).current_dir(self.folder.path()).env("HOME", self.folder.path()).envs([GARBAGE]);
        LoggedProcess::start(name, &mut command, &self.log(name))
    }

    /// The tokens of all users, and the key that signs those of service accounts.
    fn make_users(&mut self, nodes: &[&str]) -> Result<()> {
        let users = nodes.iter().map(|node| User::Node(node)).chain([User::Admin]);
        let mut table = String::new();
        for user in users {
            let (name, token) = (user.name(), random()?);
            writeln!(table, "{token},{name},{name},{}", user.group())?;
            self.tokens.insert(name, token);
        }
        fs::write(self.path("tokens.csv"), table)?;
        let mut command = Command::new("openssl");
        command.args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]);
        output(command.arg(self.path("accounts.key")))?;
        let mut command = Command::new("openssl");
        command.args(["pkey", "-pubout", "-in"]).arg(self.path("accounts.key"));
        output(command.arg("-out").arg(self.path("accounts.pub"))).map(drop)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let (clients, peers) = (url(self.ports.etcd), url(self.ports.peers));
        let flags = [
            format!("--data-dir={}", self.path("etcd").display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
        ];
        let etcd = self.run("etcd", &self.assets.etcd, &flags)?;
        etcd.until(LIMIT, || answers(self.ports.etcd))?;
        self.etcd = Some(etcd);
        Ok(())
    }

    fn start_apiserver(&mut self) -> Result<()> {
        let mut flags = vec![
            format!("--etcd-servers={}", url(self.ports.etcd)),
            format!("--bind-address={}", Ipv4Addr::LOCALHOST),
            // The certificate is for this address too, and the service `kubernetes` leads guests to it.
            format!("--advertise-address={GATEWAY}"),
            format!("--secure-port={}", self.ports.apiserver),
            format!("--cert-dir={}", self.path("certificates").display()),
            format!("--token-auth-file={}", self.path("tokens.csv").display()),
            format!("--service-account-issuer={ISSUER}"),
            format!("--service-account-key-file={}", self.path("accounts.pub").display()),
            format!("--service-account-signing-key-file={}", self.path("accounts.key").display()),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        flags.extend(self.more.iter().cloned());
        let apiserver = self.run("kube-apiserver", &self.assets.apiserver, &flags)?;
        apiserver.until(LIMIT, || {
            answers(self.ports.apiserver)?;
            is_ready(self.ports.apiserver)?;
            fs::write(self.admin_config(), self.kubeconfig(User::Admin, ClientPlace::Host)?)
                .map_err(Into::into)
        })?;
        self.apiserver = Some(apiserver);
        Ok(())
    }

    fn start_controllers(&mut self) -> Result<()> {
        let common = [
            format!("--kubeconfig={}", self.admin_config().display()),
            // With an election they stay idle for a while after each restart of the API server.
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let mut flags = common.to_vec();
        flags.push(format!("--service-account-private-key-file={}", self.path("accounts.key").display()));
        flags.push(format!("--root-ca-file={}", self.certificate_path().display()));
        self.controller_manager =
            Some(self.run("kube-controller-manager", &self.assets.controller_manager, &flags)?);
        self.scheduler = Some(self.run("kube-scheduler", &self.assets.scheduler, &common)?);
        Ok(())
    }
}

/// Ports of the loopback that were free a moment ago.
#[derive(Debug, Clone, Copy)]
struct Ports {
    etcd: u16,
    peers: u16,
    apiserver: u16,
}

impl Ports {
    fn free() -> Result<Self> {
        let [etcd, peers, apiserver] = free_ports()?;
        Ok(Self { etcd, peers, apiserver })
    }
}

/// Ports of the loopback that are free at this moment. All differ.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All are held together, so that they differ.
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the loopback has no free port")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn url(port: u16) -> String {
    format!("http://{}:{port}", Ipv4Addr::LOCALHOST)
}

/// Whether something listens at a port of the loopback.
fn answers(port: u16) -> Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("no answer at port {port}"))
        .map(drop)
}

/// Asks the API server whether it is ready, as anybody may. It is asked many times while it starts, and each start of kubectl takes
/// longer than the answer.
fn is_ready(port: u16) -> Result<()> {
    let mut client = Command::new("timeout");
    client.args(["10", "openssl", "s_client", "-quiet", "-connect"]);
    client.arg(format!("{}:{port}", Ipv4Addr::LOCALHOST));
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = client.spawn().context("cannot start openssl")?;
    let mut request = client.stdin.take().context("stdin was asked for")?;
    request.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
    // With an open stdin it waits for the end of the answer.
    let answer = client.wait_with_output()?;
    drop(request);
    let answer = String::from_utf8_lossy(&answer.stdout);
    let status = answer.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "the API server is not ready: {status:?}");
    Ok(())
}

/// A secret in hexadecimal.
fn random() -> Result<String> {
    let mut bytes = [0; TOKEN];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// What tests do to a control plane.
#[cfg(test)]
impl ControlPlane {
    /// Kills the API server. The others stay, as on a node whose API server has crashed.
    pub(crate) fn kill_apiserver(&mut self) {
        self.apiserver = None;
    }

    /// Kills the API server if it runs, starts it at the same port with the same data, and waits until it is ready.
    pub(crate) fn restart_apiserver(&mut self) -> Result<()> {
        self.kill_apiserver();
        self.start_apiserver()
    }

    /// Stops API server and etcd, keeps a copy of etcd's data, and starts them again.
    pub(crate) fn back_up(&mut self) -> Result<()> {
        self.with_data_of("etcd", "backup")
    }

    /// Stops API server and etcd, and starts them with the data of [`Self::back_up`]. The versions of objects begin there again.
    pub(crate) fn restore(&mut self) -> Result<()> {
        self.with_data_of("backup", "etcd")
    }

    /// Replaces one folder by a copy of another while API server and etcd are stopped.
    fn with_data_of(&mut self, from: &str, to: &str) -> Result<()> {
        self.kill_apiserver();
        self.etcd = None;
        let (from, to) = (self.path(from), self.path(to));
        crate::cache::remove_tree(&to)?;
        output(Command::new("cp").arg("-a").arg(from).arg(to))?;
        self.start_etcd()?;
        self.start_apiserver()
    }

    /// Fails with the end of its log if a part has ended that nobody killed.
    pub(crate) fn check(&self) -> Result<()> {
        let parts = [&self.etcd, &self.apiserver, &self.controller_manager, &self.scheduler];
        parts.into_iter().flatten().try_for_each(LoggedProcess::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::kube::assets::tested;

    #[test]
    fn ports_that_are_chosen_together_differ() {
        let ports = Ports::free().unwrap();
        assert!(ports.etcd != ports.peers && ports.peers != ports.apiserver && ports.apiserver != ports.etcd);
    }

    /// `cargo xtask test` builds the programs first, and then runs this.
    #[test]
    #[ignore = "needs the programs of `cargo xtask kube-assets`"]
    fn a_control_plane_keeps_its_objects_and_its_controllers_work_on_when_the_api_server_is_killed() {
        let assets = KubeAssets::cached(&Cache::open().unwrap(), &tested()).unwrap();
        let wanted = Wanted { name: "test", nodes: &["n1"], apiserver: &[] };
        let mut plane = ControlPlane::start(&assets, wanted).unwrap();
        let folder = plane.folder.path().to_owned();
        let kubectl = |plane: &ControlPlane, line: &str| output(plane.kubectl().args(line.split(' ')));

        kubectl(&plane, "create namespace before").unwrap();
        kubectl(&plane, "wait --for=create serviceaccount/default --namespace before --timeout=120s")
            .unwrap();
        let run = "run lonely --image none --namespace before";
        kubectl(&plane, run).unwrap();
        // The scheduler has no node for it.
        kubectl(
            &plane,
            "wait --for=condition=PodScheduled=false pod/lonely --namespace before --timeout=120s",
        )
        .unwrap();

        plane.kill_apiserver();
        kubectl(&plane, "get namespace before --request-timeout=5s").unwrap_err();
        plane.restart_apiserver().unwrap();
        let name = kubectl(&plane, "get namespace before --output name").unwrap();
        assert_eq!(name.trim(), "namespace/before");
        kubectl(&plane, "create namespace after").unwrap();
        kubectl(&plane, "wait --for=create serviceaccount/default --namespace after --timeout=120s").unwrap();

        // A node's own token, at the address of the host: NodeRestriction lets it make its own Node and no other.
        let config = folder.join("node.kubeconfig");
        fs::write(&config, plane.kubeconfig(User::Node("n1"), ClientPlace::Host).unwrap()).unwrap();
        let create = |name: &str| {
            let file = folder.join(format!("{name}.json"));
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            fs::write(&file, node.to_string()).unwrap();
            output(plane.kubectl().env("KUBECONFIG", &config).args(["create", "-f"]).arg(file))
        };
        create("n1").unwrap();
        create("n2").unwrap_err();
        plane.kubeconfig(User::Node("n2"), ClientPlace::Guest).unwrap_err();
        plane.check().unwrap();

        drop(plane);
        assert!(!folder.exists());
    }
}
