#include "coordinator/front.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "coordinator/grpc/grpc_services.h"
#include "coordinator/http_server/api_server.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/request_records.h"
#include "proto/control.grpc.pb.h"
#include "proto/grpc_listener.h"
#include "proto/inference.grpc.pb.h"
#include "proto/tls.h"
#include "proto/vllm_engine.grpc.pb.h"

namespace somnus {
namespace {

constexpr char kDefaultUrl[] = "http://127.0.0.1:8000";  // where commands look for a server
constexpr absl::Duration kHealthInterval = absl::Milliseconds(500);
constexpr absl::Duration kRecordsGrace = absl::Seconds(2);          // for spans that wait at the end
constexpr absl::Duration kCertificateInterval = absl::Seconds(10);  // between two looks at the files

std::string HostPort(const std::string& host, int port) {
  const bool is_v6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

const char* Scheme(const TlsFiles& tls) { return tls.certificate.empty() ? "http://" : "https://"; }

std::shared_ptr<grpc::ServerCredentials> Credentials(const TlsFiles& tls) {
  if (tls.certificate.empty()) return grpc::InsecureServerCredentials();
  return TlsListener(WatchTlsFiles(tls, kCertificateInterval), /*require_client=*/!tls.authority.empty());
}

bool IsAnyHost(const std::string& host) { return host == "0.0.0.0" || host == "::" || host == "[::]"; }

// For a program or a browser of this host.
std::string UrlOf(const TlsFiles& tls, const std::string& host, int port) {
  return absl::StrCat(Scheme(tls), HostPort(IsAnyHost(host) ? "127.0.0.1" : host, port));
}

bool IsLoopback(const std::string& host) {
  return absl::StartsWith(host, "127.") || host == "localhost" || host == "::1" || host == "[::1]";
}

class FrontImpl : public Front {
 public:
  FrontImpl(const Flags& flags, std::function<StateReport()> starting)
      : flags_(flags), starting_(std::move(starting)) {}
  ~FrontImpl() override { Shutdown(absl::ZeroDuration()); }

  // gRPC listens first, because the HTTP server tells its clients gRPC's ports.
  absl::Status Listen(std::shared_ptr<Metrics> metrics) {
    if (flags_.admin_api_keys.empty() && !IsLoopback(flags_.admin_host)) {
      LogWarning("--admin-host: whoever reaches {} may command this server; --admin-api-key gives it a key",
                 flags_.admin_host);
    }
    if (flags_.server_dev_mode && flags_.admin_api_keys.empty() && !IsLoopback(flags_.host)) {
      LogWarning(
          "--server-dev-mode: whoever reaches {} may command this server; --admin-api-key gives it a key",
          flags_.host);
    }
    ASSIGN_OR_RETURN(records_, RequestRecords::Start(flags_, metrics.get()));
    RETURN_IF_ERROR(ListenGrpc(metrics));
    ApiServerOptions http;
    http.host = flags_.host;
    http.port = static_cast<uint16_t>(flags_.port);
    http.admin_host = flags_.admin_host;
    http.admin_port = static_cast<uint16_t>(flags_.admin_port);
    http.grpc_port = static_cast<uint16_t>(inference_->port());
    http.control_port = static_cast<uint16_t>(control_->port());
    http.output_threads = flags_.output_threads;
    http.api_keys = flags_.api_keys;
    http.admin_api_keys = flags_.admin_api_keys;
    http.tls = flags_.tls;
    http.admin_tls = flags_.admin_tls;
    http.certificate_interval = kCertificateInterval;
    http.version = kVersion;
    http.starting = starting_;
    http.limits = flags_.limits;
    http.cors = flags_.cors;
    http.admin_allowed_hosts = flags_.admin_allowed_hosts;
    http.root_path = flags_.root_path;
    http.console = flags_.console;
    http.tokenizer_info = flags_.tokenizer_info;
    http.operators_on_port = flags_.server_dev_mode;
    http.request_id_headers = flags_.request_id_headers;
    http.recorder = records_->recorder();
    ASSIGN_OR_RETURN(http_, ApiServer::Start(std::move(http), std::move(metrics)));
    return absl::OkStatus();
  }

  void SetModels(const std::vector<ServedModel>& models) override {
    services_->SetModels(models);
    http_->SetModels(models);
    {
      absl::MutexLock lock(&health_mu_);
      for (const ServedModel& model : models) engines_.push_back(model.engine);
    }
    health_thread_ = std::thread([this] {
      const Heartbeat heartbeat("", "gRPC health");
      do {
        heartbeat.Beat();
        UpdateHealth();
      } while (!stop_.WaitFor(kHealthInterval));
    });
  }

  void OnStateChange() override { UpdateHealth(); }

  std::string Addresses() const override {
    return absl::StrCat(Scheme(flags_.tls), HostPort(flags_.host, http_->port()), ", admin ",
                        Scheme(flags_.admin_tls), HostPort(flags_.admin_host, http_->admin_port()), ", gRPC ",
                        HostPort(flags_.host, inference_->port()), ", admin gRPC ",
                        HostPort(flags_.admin_host, control_->port()));
  }

  std::vector<std::string> FirstSteps() const override {
    const std::string url = UrlOf(flags_.tls, flags_.host, http_->port());
    std::vector<std::string> steps = {absl::StrCat("the API:  ", url, "/v1")};
    if (flags_.console)
      steps.push_back(absl::StrCat("pages:    ", url, "/ to chat, ",
                                   UrlOf(flags_.admin_tls, flags_.admin_host, http_->admin_port()),
                                   "/ to operate"));
    steps.push_back(
        absl::StrCat("to talk:  somnus chat", url == kDefaultUrl ? "" : absl::StrCat(" --url=", url)));
    return steps;
  }

  int admin_port() const override { return http_->admin_port(); }

  void Shutdown(absl::Duration grace) override {
    stop_.Stop();
    if (health_thread_.joinable()) health_thread_.join();
    const auto deadline = absl::ToChronoTime(absl::Now() + grace);
    // Operators can see the open requests until the last request has ended.
    for (GrpcListener* listener : {inference_.get(), control_.get()}) {
      if (listener == nullptr) continue;
      listener->server().GetHealthCheckService()->SetServingStatus(false);
      listener->Shutdown(deadline);
    }
    if (http_ != nullptr) http_->Shutdown(grace);
    if (records_ != nullptr) records_->Finish(kRecordsGrace);
  }

 private:
  absl::Status ListenGrpc(std::shared_ptr<Metrics> metrics) {
    GrpcServicesOptions options;
    options.version = kVersion;
    options.api_keys = flags_.api_keys;
    options.admin_api_keys = flags_.admin_api_keys;
    options.trusts_gateways = flags_.trust_gateways;
    options.limits = flags_.limits;
    options.starting = starting_;
    options.recorder = records_->recorder();
    services_ = GrpcServices::Create(std::move(options), std::move(metrics));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder inference, control;
    services_->RegisterInference(&inference);
    services_->RegisterControl(&control);
    ASSIGN_OR_RETURN(inference_, Build("--grpc-port", HostPort(flags_.host, flags_.grpc_port),
                                       DescriptorUse::kClients, Credentials(flags_.tls), &inference));
    ASSIGN_OR_RETURN(control_, Build("--control-port", HostPort(flags_.admin_host, flags_.control_port),
                                     DescriptorUse::kOperators, Credentials(flags_.admin_tls), &control));
    SetHealth(inference_->server().GetHealthCheckService(), /*serving=*/false);
    for (const char* service : {"", v1::ControlService::service_full_name()}) {
      control_->server().GetHealthCheckService()->SetServingStatus(service, true);
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<std::unique_ptr<GrpcListener>> Build(
      const char* flag, const std::string& address, DescriptorUse use,
      const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::ServerBuilder* builder) {
    auto listener = GrpcListener::Start(address, use, credentials, builder);
    if (listener.ok()) return listener;
    return absl::Status(listener.status().code(), absl::StrCat(flag, ": ", listener.status().message()));
  }

  // Called at intervals, too, because a step that hangs changes no state. The lock makes the published look
  // the latest look.
  void UpdateHealth() {
    absl::MutexLock lock(&health_mu_);
    const bool serving =
        Heartbeats::OfProcess().Check().ok() &&
        std::all_of(engines_.begin(), engines_.end(),
                    [](const std::shared_ptr<Engine>& engine) { return engine->Health().ok(); });
    SetHealth(inference_->server().GetHealthCheckService(), serving);
  }

  // The server as a whole and the services that generate are healthy while requests are served. The
  // operators' listener is always healthy, since operators wake a sleeping engine through that listener.
  static void SetHealth(grpc::HealthCheckServiceInterface* health, bool serving) {
    health->SetServingStatus("", serving);
    health->SetServingStatus(v1::InferenceService::service_full_name(), serving);
    health->SetServingStatus(::vllm::grpc::engine::VllmEngine::service_full_name(), serving);
  }

  const Flags flags_;
  const std::function<StateReport()> starting_;
  std::unique_ptr<RequestRecords> records_;
  std::unique_ptr<ApiServer> http_;
  std::unique_ptr<GrpcServices> services_;  // outlives the listeners
  std::unique_ptr<GrpcListener> inference_;
  std::unique_ptr<GrpcListener> control_;
  absl::Mutex health_mu_;
  std::vector<std::shared_ptr<Engine>> engines_ ABSL_GUARDED_BY(health_mu_);  // empty before SetModels
  StopSignal stop_;
  std::thread health_thread_;  // runs from SetModels to Shutdown
};

}  // namespace

absl::StatusOr<std::unique_ptr<Front>> Front::Start(const Flags& flags, std::shared_ptr<Metrics> metrics,
                                                    std::function<StateReport()> starting) {
  auto front = std::make_unique<FrontImpl>(flags, std::move(starting));
  RETURN_IF_ERROR(front->Listen(std::move(metrics)));
  return front;
}

}  // namespace somnus
