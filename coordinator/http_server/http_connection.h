#pragma once
// One HTTP/1.1 connection: reads requests within the limits, responds to them in order, notices when the
// client leaves. Internal to coordinator/http_server; includes Boost, so only the HTTP server's own files may
// include it.
//
// Everything runs on the server's I/O thread, except that a request is parsed and submitted on the request
// pool, and that the response is made on the output threads (response_producer.h); the I/O thread sends the
// bytes. Run never throws.

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/http/http_stream.h"
#include "coordinator/http_server/api_state.h"
#include "coordinator/http_server/http_request.h"
#include "coordinator/openai/response_producer.h"

namespace somnus {

// The server's parts that connections use.
struct HttpContext {
  ApiState* state;
  boost::asio::io_context* io;
  boost::asio::thread_pool* request_pool;  // parsing, tokenizing
  TaskThreads* lifecycle_threads;          // for calls such as sleep, which may block for minutes
  PostTask post_output;                    // detokenizing, stop strings, responses' JSON
  std::shared_ptr<ResponseBudget> response_budget;
  std::atomic<int64_t> buffered_body_bytes{0};
  std::atomic<int64_t> busy_connections{0};  // connections with a request in progress
  std::atomic<int32_t> kv_event_watchers{0};
  std::atomic<bool> stopping{false};
};

class ConnectionWaker;
class KvEventReader;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `tls` may be null: plain HTTP.
  HttpConnection(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
                 bool admin, HttpContext* context);
  ~HttpConnection();

  boost::asio::awaitable<void> Run();
  // Ends the connection at once, also in the middle of a request. To be called on the I/O thread.
  void Close();
  // Makes Run look again at the condition that Run waits for. To be called on the I/O thread.
  void Wake();
  bool busy() const { return busy_; }
  bool admin() const { return admin_; }
  // When the wait for a whole request began; InfiniteFuture while a request is in progress.
  MonotonicTime waiting_since() const { return waiting_since_; }

 private:
  using Request = HttpRequest;
  enum class ReadResult { kRequest, kClosed, kRefused };

  // Returns false when no request can be read: the connection ends.
  boost::asio::awaitable<bool> Open();
  boost::asio::awaitable<ReadResult> ReadRequest(Request* request);
  boost::asio::awaitable<bool> WaitForFirstByte();
  template <typename Parser>
  boost::asio::awaitable<bool> ReadBody(Parser* parser, Request* request);
  // Decompresses a body that came compressed. False: the body was refused.
  boost::asio::awaitable<bool> DecodeBody(Request* request);
  // Sends an error response, after which the connection ends.
  boost::asio::awaitable<void> Refuse(const Request& request, int status, const char* message);
  boost::asio::awaitable<void> RefuseWith(const Request& request, HttpResponse response);
  boost::asio::awaitable<bool> Answer(Request* request);
  boost::asio::awaitable<bool> Respond(Request* request, const RouteMatch& match);
  // Counts a request in http_requests_total, and records the request, unless the route is not counted.
  void Count(const Request& request, const RouteMatch& match, int status, MonotonicTime start);
  void Record(const Request& request, const RouteMatch& match, int status);
  // Counts a request that did not become a whole request that may be served.
  void CountRefusal(const Request& request, int status);
  boost::asio::awaitable<HttpResponse> Dispatch(Request* request, const RouteMatch& match);
  // Answers a lifecycle route's request on a thread of lifecycle_threads; the call can ask whether the
  // client has left.
  boost::asio::awaitable<HttpResponse> CallLifecycle(const Request& request, const RouteMatch& match,
                                                     const std::string& query);
  void NoteGone();

  // Serves a generating request. Returns false when the connection must end.
  boost::asio::awaitable<bool> Generate(Request* request, Route route);
  // A request that was submitted, its error, or a request whose grammar is still to be compiled.
  using Started = std::variant<std::shared_ptr<ResponseProducer>, ApiError, std::unique_ptr<GenerateParams>>;
  // Parses a request, and submits the request unless it awaits its grammar. Runs on the request pool.
  Started StartGeneration(Request* request, Route route, const std::shared_ptr<const ServedModel>& model,
                          const std::shared_ptr<ConnectionWaker>& waker);
  // Waits for the grammar of a parsed request. Nullopt: no error.
  boost::asio::awaitable<std::optional<ApiError>> SetConstraint(const ServedModel& model,
                                                                GenerateParams* params,
                                                                std::shared_ptr<ConnectionWaker> waker);
  // Submits a parsed request. Runs on the request pool.
  Started SubmitGeneration(Route route, const std::shared_ptr<const ServedModel>& model,
                           GenerateParams params, const std::shared_ptr<ConnectionWaker>& waker);
  // Where `engine` cannot serve yet, a stream's head is sent before there is anything to send.
  boost::asio::awaitable<bool> Follow(const Request& request, ResponseProducer* producer,
                                      const Engine& engine);
  // Sends `head` (status line and headers, or nothing) and `data` as one chunk; `last` ends the body.
  boost::asio::awaitable<bool> SendChunk(const Request& request, std::string head, std::string data,
                                         bool last);

  // Serves a stream of KV events until the client or the server ends it. Returns false when the connection
  // must end.
  boost::asio::awaitable<bool> FollowKvEvents(Request* request, const RouteMatch& match);
  boost::asio::awaitable<bool> SendKvEvents(const Request& request, KvEventReader* reader);

  boost::asio::awaitable<bool> Send(std::string data);
  boost::asio::awaitable<bool> SendResponse(const Request& request, HttpResponse response);
  boost::asio::awaitable<void> LingeringClose();
  boost::asio::awaitable<void> Drain();

  // Watch whether the client closes the connection while the request is in progress. `watch` is watch_'s
  // value when the watch began: callbacks of a watch that has ended do nothing.
  void StartWatch();
  void StopWatch();
  void OnReadable(uint64_t watch);
  void PollHangup(uint64_t watch);
  // Returns false when `limit`, which may be infinite, has passed without a Wake.
  boost::asio::awaitable<bool> WaitForWake(absl::Duration limit);

  HttpContext* const context_;
  const bool admin_;
  HttpStream stream_;
  boost::beast::flat_buffer buffer_;
  const std::string peer_;  // the client's address, also once the client has left
  boost::asio::steady_timer event_;
  boost::asio::steady_timer hangup_timer_;
  bool woken_ = false;
  bool gone_ = false;  // the client has left, or Close() was called
  std::shared_ptr<std::atomic<bool>>
      caller_left_;  // gone_ for the thread of a lifecycle call; null: no call is under way
  bool busy_ = false;
  MonotonicTime waiting_since_ = MonotonicNow();
  MonotonicTime request_start_ = MonotonicNow();  // the first byte of the request in progress
  uint64_t watch_ = 0;                            // odd while watching
  int64_t buffered_ = 0;
  int last_status_ = 0;
  std::optional<RequestSummary>
      summary_;  // of the request in progress, once the engine has taken the request
};

}  // namespace somnus
