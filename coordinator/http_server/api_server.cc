#include "coordinator/http_server/api_server.h"

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <latch>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/descriptors.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/http/https_context.h"
#include "coordinator/http_server/api_state.h"
#include "coordinator/http_server/http_connection.h"
#include "coordinator/openai/output_threads.h"

namespace somnus {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// There is no flag for the number of threads that parse, since parsing a request takes microseconds.
constexpr int kRequestThreads = 2;
// Lifecycle calls only wait on their threads. --max-lifecycle-calls bounds the calls of a kind and model, so
// that the calls of a kind leave threads to the remaining kinds.
constexpr int kMaxLifecycleThreads = 1024;
constexpr auto kAcceptRetry = std::chrono::milliseconds(100);

int NumOutputThreads(const ApiServerOptions& options) {
  return options.output_threads > 0 ? options.output_threads : DefaultOutputThreads();
}

absl::Status Listen(const std::string& host, uint16_t port, tcp::acceptor* acceptor) {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec) return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is no IP address to listen on"));
  const tcp::endpoint endpoint(address, port);
  acceptor->open(endpoint.protocol(), ec);
  if (!ec) acceptor->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor->bind(endpoint, ec);
  if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
  if (ec)
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, " port ", port, ": ", ec.message()));
  return absl::OkStatus();
}

class HttpServer : public ApiServer {
 public:
  HttpServer(ApiServerOptions options, std::shared_ptr<Metrics> metrics)
      : state_(std::move(options), std::move(metrics)),
        output_threads_(std::make_shared<OutputThreads>(NumOutputThreads(state_.options))),
        context_{&state_,
                 &io_,
                 &request_pool_,
                 &lifecycle_threads_,
                 [threads = output_threads_](std::function<void()> task) { threads->Post(std::move(task)); },
                 std::make_shared<ResponseBudget>(state_.options.limits.max_response_bytes,
                                                  state_.options.limits.max_buffered_response_bytes)} {}
  ~HttpServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Open() {
    const ApiServerOptions& options = state_.options;
    BoundConnections(options);
    RETURN_IF_ERROR(Listen(options.host, options.port, &inference_.acceptor));
    RETURN_IF_ERROR(Listen(options.admin_host, options.admin_port, &admin_.acceptor));
    admin_.admin = true;
    RETURN_IF_ERROR(LoadCertificate(options.tls, &inference_));
    RETURN_IF_ERROR(LoadCertificate(options.admin_tls, &admin_));
    for (Listener* listener : {&inference_, &admin_}) {
      listener->port = listener->acceptor.local_endpoint().port();
      asio::co_spawn(io_, Accept(listener), asio::detached);
    }
    state_.http_port = inference_.port;
    state_.admin_port = admin_.port;
    WatchRequestThreads();
    thread_ = std::thread([this] {
      const Heartbeat heartbeat("", "HTTP I/O thread");
      asio::co_spawn(io_, Beat(), asio::detached);
      io_.run();
    });
    return absl::OkStatus();
  }

  void SetModels(std::vector<ServedModel> models) override { state_.SetModels(std::move(models)); }
  uint16_t port() const override { return inference_.port; }
  uint16_t admin_port() const override { return admin_.port; }

  void Shutdown(absl::Duration grace) override {
    absl::MutexLock lock(&shutdown_mutex_);
    if (!thread_.joinable()) return;
    const MonotonicTime deadline = MonotonicNow() + grace;
    context_.stopping = true;
    asio::post(io_, [this] { StopListening(); });
    while (context_.busy_connections > 0 && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
    asio::post(io_, [this] { CloseAll(); });
    work_.reset();
    thread_.join();
    request_pool_.join();
    lifecycle_threads_.Join();
    output_threads_->Stop();
  }

 private:
  struct Listener {
    explicit Listener(asio::io_context& io) : acceptor(io) {}
    tcp::acceptor acceptor;
    bool admin = false;
    uint16_t port = 0;
    int32_t connections = 0;
    int64_t descriptors = 0;              // the first descriptor that the listener leaves free
    std::unique_ptr<HttpsContext> https;  // null: plain HTTP
  };

  // Each connection takes a descriptor. Clients' connections leave descriptors to operators' connections,
  // and operators' connections leave descriptors to workers.
  void BoundConnections(const ApiServerOptions& options) {
    const DescriptorBounds bounds = RaiseDescriptorLimit();
    inference_.descriptors = bounds.clients;
    admin_.descriptors = bounds.operators;
    if (options.limits.max_connections <= bounds.clients) return;
    LogWarning("--max-connections: {} are more than this process may have (ulimit -n: {}); {} at most",
               options.limits.max_connections, bounds.all, bounds.clients);
  }

  // The signs of life of the I/O thread, from a timer of its loop: a loop that hangs answers no probe, but
  // the log, gRPC's health and operators are told.
  asio::awaitable<void> Beat() {
    const Heartbeat* const heartbeat = Heartbeat::OfThread();
    while (heartbeat != nullptr && !closing_) {
      heartbeat->Beat();
      error_code ignored;
      beat_.expires_after(absl::ToChronoNanoseconds(heartbeat->tick()));
      co_await beat_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  // A task ends only when all tasks have begun, so that each thread of the pool takes a task.
  void WatchRequestThreads() {
    const auto begun = std::make_shared<std::latch>(kRequestThreads);
    for (int i = 0; i < kRequestThreads; ++i) {
      asio::post(request_pool_, [this, begun] {
        thread_local const Heartbeat heartbeat("", "request threads", &request_pool_);
        thread_local const Heartbeat::Wait rest(absl::InfiniteDuration());
        begun->arrive_and_wait();
      });
    }
  }

  absl::Status LoadCertificate(const TlsFiles& files, Listener* listener) {
    if (files.certificate.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(listener->https, HttpsContext::Create(files, state_.options.certificate_interval));
    return absl::OkStatus();
  }

  asio::awaitable<void> Accept(Listener* listener) {
    while (!context_.stopping) {
      error_code ec;
      tcp::socket socket =
          co_await listener->acceptor.async_accept(asio::redirect_error(asio::use_awaitable, ec));
      if (ec == asio::error::operation_aborted || !listener->acceptor.is_open()) co_return;
      if (ec) {  // most likely there are no descriptors left: some connections must end first
        asio::steady_timer timer(io_);
        timer.expires_after(kAcceptRetry);
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      if (!MakeRoom(*listener, &socket)) continue;
      ++listener->connections;
      asio::co_spawn(io_, Serve(std::move(socket), listener), asio::detached);
    }
  }

  // Whether the listener may have a further connection. Where there are too many, the connection that waits
  // longest for a request makes way.
  bool MakeRoom(const Listener& listener, tcp::socket* socket) {
    const bool is_low = socket->native_handle() < listener.descriptors;
    if (is_low && listener.connections < state_.options.limits.max_connections) return true;
    state_.metrics->OnRejected("too_many_connections");
    return CloseLongestWaiting(listener.admin) && (is_low || MoveBelow(listener.descriptors, socket));
  }

  // Gives the socket the lowest free descriptor: a connection that made way has just left a low one. False
  // where the listener for gRPC has taken that descriptor meanwhile. A socket that kept a high descriptor
  // would leave fewer descriptors to operators and workers.
  bool MoveBelow(int64_t bound, tcp::socket* socket) {
    error_code ec;
    const tcp::endpoint endpoint = socket->local_endpoint(ec);
    if (ec) return false;
    const int high = socket->release(ec);
    if (ec) return false;
    const int low = fcntl(high, F_DUPFD_CLOEXEC, 0);
    close(high);
    if (low < 0) return false;
    socket->assign(endpoint.protocol(), low, ec);
    if (ec) close(low);
    return !ec && low < bound;
  }

  asio::awaitable<void> Serve(tcp::socket socket, Listener* listener) {
    std::shared_ptr<asio::ssl::context> tls =
        listener->https == nullptr ? nullptr : listener->https->Current();
    const auto connection =
        std::make_shared<HttpConnection>(std::move(socket), std::move(tls), listener->admin, &context_);
    connections_.insert(connection.get());
    co_await connection->Run();
    connections_.erase(connection.get());
    --listener->connections;
  }

  // Makes room for a new connection: closes the connection that has waited longest for a whole request, so
  // that idle connections cannot keep new ones out. Returns false when all connections have a request in
  // progress.
  bool CloseLongestWaiting(bool admin) {
    HttpConnection* longest = nullptr;
    for (HttpConnection* connection : connections_) {
      if (connection->admin() != admin || connection->waiting_since() == absl::InfiniteDuration()) continue;
      if (longest == nullptr || connection->waiting_since() < longest->waiting_since()) longest = connection;
    }
    if (longest != nullptr) longest->Close();
    return longest != nullptr;
  }

  void StopListening() {
    error_code ignored;
    inference_.acceptor.close(ignored);
    admin_.acceptor.close(ignored);
    for (HttpConnection* connection : connections_) {
      if (!connection->busy()) connection->Close();
    }
  }
  void CloseAll() {
    closing_ = true;
    beat_.cancel();
    for (HttpConnection* connection : connections_) connection->Close();
  }

  // The order matters for destruction, which is in reverse: objects that connections use must outlive io_,
  // which holds the connections' coroutine frames.
  ApiState state_;
  const std::shared_ptr<OutputThreads>
      output_threads_;  // shared: the engine may push outputs of aborted requests after the server's end
  HttpContext context_;
  std::set<HttpConnection*> connections_;
  asio::thread_pool request_pool_{kRequestThreads};
  TaskThreads lifecycle_threads_{kMaxLifecycleThreads};
  asio::io_context io_{1};
  Listener inference_{io_}, admin_{io_};
  asio::steady_timer beat_{io_};
  bool closing_ = false;  // CloseAll has run, on the I/O thread
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  absl::Mutex shutdown_mutex_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(ApiServerOptions options,
                                                            std::shared_ptr<Metrics> metrics) {
  auto server = std::make_unique<HttpServer>(std::move(options), std::move(metrics));
  if (absl::Status status = server->Open(); !status.ok()) return status;
  return server;
}

}  // namespace somnus
