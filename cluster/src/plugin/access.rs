//! The API server that the caller's config names, and the token with which a node's reporter knows the caller.
//!
//! In: options and the config of `kubectl`. Out: a client, and a token. Whoever is root on a node can read what its reporter gets,
//! so a caller with many rights does better to send the token of a service account that may read logs and nothing else.

use super::error::PluginError;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::client::ConfigExt as _;
use kube::config::{ExecInteractiveMode, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use std::path::PathBuf;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

/// Shortest life of a token that the API server makes.
const TOKEN_SECONDS: i64 = 600;

/// Which API server, and who asks.
#[derive(Debug, Default, clap::Args)]
pub struct AccessOptions {
    /// The config of kubectl. [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in that config.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of Holdfast's pods and Leases.
    #[arg(long, short = 'n', global = true, default_value = "holdfast-system", value_name = "NAME")]
    namespace: String,
    /// Ask nodes with a token of this service account in that namespace, and not with your own.
    #[arg(long, global = true, value_name = "NAME")]
    service_account: Option<String>,
}

impl AccessOptions {
    /// The config that they name.
    async fn config(&self) -> Result<Config, PluginError> {
        let chosen = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let wrong = |error| PluginError::Config(Box::new(error));
        match (&self.kubeconfig, &self.context) {
            (Some(file), _) => {
                let read = Kubeconfig::read_from(file).map_err(wrong)?;
                Config::from_custom_kubeconfig(read, &chosen).await.map_err(wrong)
            }
            (None, Some(_)) => Config::from_kubeconfig(&chosen).await.map_err(wrong),
            (None, None) => Config::infer().await.map_err(|error| PluginError::NoConfig(Box::new(error))),
        }
    }
}

/// A client of the API server, and who asks.
pub(super) struct Access {
    /// The client.
    pub(super) client: Client,
    /// The namespace of Holdfast's pods and Leases.
    pub(super) namespace: String,
    config: Config,
    service_account: Option<String>,
}

impl Access {
    /// Reads the config. Nothing is asked yet.
    pub(super) async fn new(options: AccessOptions) -> Result<Self, PluginError> {
        let config = options.config().await?;
        Self::of(options, config)
    }

    /// The same, where a program that gets a token may ask the user nothing.
    pub(super) async fn without_questions(options: AccessOptions) -> Result<Self, PluginError> {
        let mut config = options.config().await?;
        if let Some(program) = &mut config.auth_info.exec {
            program.interactive_mode = Some(ExecInteractiveMode::Never);
        }
        Self::of(options, config)
    }

    fn of(options: AccessOptions, config: Config) -> Result<Self, PluginError> {
        let client =
            Client::try_from(config.clone()).map_err(|error| PluginError::Client(Box::new(error)))?;
        Ok(Self { client, namespace: options.namespace, config, service_account: options.service_account })
    }

    /// The value of the header `Authorization` for a node's reporter.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, PluginError> {
        if let Some(account) = &self.service_account {
            return self.account_token(account).await;
        }
        // The client's own layer knows each source of a token: a file, a command, a provider.
        let failed = |error: &dyn std::fmt::Display| PluginError::Token(error.to_string());
        let none = || PluginError::NoToken { namespace: self.namespace.clone() };
        let layer = self.config.auth_layer().map_err(|error| failed(&error))?.ok_or_else(none)?;
        let echo = service_fn(|request: Request<Empty<Bytes>>| async move {
            let mut response = Response::new(());
            *response.headers_mut() = request.headers().clone();
            Ok::<_, BoxError>(response)
        });
        let echoed =
            layer.layer(echo).oneshot(Request::new(Empty::new())).await.map_err(|error| failed(&error))?;
        let header = echoed.headers().get(AUTHORIZATION).cloned();
        header.filter(|value| value.as_bytes().starts_with(b"Bearer ")).ok_or_else(none)
    }

    async fn account_token(&self, account: &str) -> Result<HeaderValue, PluginError> {
        let object = format!("ServiceAccount {}/{account}", self.namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let wanted = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let made = accounts
            .create_token_request(account, &PostParams::default(), &wanted)
            .await
            .map_err(|error| PluginError::request(&object, "create it, or name another one", error))?;
        let token = made.status.map(|status| status.token).unwrap_or_default();
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|error| PluginError::Token(error.to_string()))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[cfg(test)]
impl Access {
    /// With this client.
    pub(super) fn with(client: Client) -> Self {
        let config = Config::new(hyper::Uri::from_static("http://127.0.0.1"));
        Self { client, namespace: "holdfast-system".to_owned(), config, service_account: None }
    }
}
