#pragma once
// The HTTP/1.1 front: OpenAI-compatible routes on a listener for clients, operators' routes on a listener for
// operators; each with or without TLS.
//
// Ownership: the server owns its sockets and its threads, and shares the model and the metrics. One I/O
// thread reads and writes sockets and nothing else that takes time; two threads parse requests and tokenize;
// the output threads turn tokens into text, search stop strings and write JSON; a few threads wait for sleep
// and other lifecycle calls. Thread safety: all methods are thread safe. Errors: Start returns
// InvalidArgument for a bad address or certificate and Unavailable for a port that cannot be bound (the
// message names the port); afterwards a problem of a connection ends that connection alone.
//
// Use: Start() early, so that /health returns 503 while the model loads; SetModels() once the models can be
// served. At the end Engine::DrainAndStop() (streams run to the end), then Shutdown().

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/heartbeat.h"
#include "base/tls_files.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/http/cors_options.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/records/request_recorder.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

class Metrics;

struct ApiServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free port, see ApiServer::port()
  std::string admin_host = "127.0.0.1";
  uint16_t admin_port = 8001;
  // The ports of this process's gRPC servers, for /server_info; 0: there is none.
  uint16_t grpc_port = 0;
  uint16_t control_port = 0;
  int32_t output_threads = 0;  // 0: DefaultOutputThreads()
  // Not empty: all routes except probes and metrics require "Authorization: Bearer <key>".
  ApiKeys api_keys;
  ApiKeys admin_api_keys;  // on the operators' listener
  // With a certificate the listener speaks HTTPS alone; with an authority clients must show a certificate of
  // that authority.
  TlsFiles tls;
  TlsFiles admin_tls;
  absl::Duration certificate_interval = absl::Seconds(10);  // between two looks at the files
  std::string version;
  ApiLimits limits;
  CorsOptions cors;  // of clients' listener
  // Further host names for web_page_guard.h: a request to operators' listener may have such a name in Host
  // where the listener has no key.
  std::vector<std::string> admin_allowed_hosts;
  std::function<StateReport()> starting;                    // while models are being loaded, as of ModelTable
  const Heartbeats* heartbeats = &Heartbeats::OfProcess();  // of the loops that /livez asks
  std::shared_ptr<RequestRecorder> recorder;  // of requests, but for those of routes that are not counted;
                                              // may be null
  std::string root_path;            // "/llm": paths may also begin so, as clients of a proxy see them
  bool console = true;              // pages for browsers (coordinator/console)
  bool tokenizer_info = false;      // GET /tokenizer_info is not refused
  bool request_id_headers = false;  // the response to a request without X-Request-Id has a new id
  bool operators_on_port = false;   // clients' listener has operators' routes, too, under operators' rules
};

class ApiServer {
 public:
  // `metrics` may be shared with the engine (as its EngineObserver); never null.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(ApiServerOptions options,
                                                          std::shared_ptr<Metrics> metrics);
  virtual ~ApiServer() = default;

  // From now on requests are served. Call once.
  virtual void SetModels(std::vector<ServedModel> models) = 0;
  void SetModel(ServedModel model);

  virtual uint16_t port() const = 0;
  virtual uint16_t admin_port() const = 0;

  // Stops accepting, lets open responses end for at most `grace`, then closes all connections and joins the
  // threads. Idempotent; the destructor calls Shutdown with no grace.
  virtual void Shutdown(absl::Duration grace) = 0;
};

inline void ApiServer::SetModel(ServedModel model) {
  std::vector<ServedModel> models;
  models.push_back(std::move(model));
  SetModels(std::move(models));
}

}  // namespace somnus
