#include "coordinator/api/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/log.h"

namespace somnus {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kSliceBytes = 64 << 10;
constexpr size_t kLingerBytes = 64 << 20;
constexpr auto kLingerSilence = std::chrono::seconds(2);
constexpr auto kLingerTime = std::chrono::seconds(10);
constexpr auto kHangupPoll = std::chrono::milliseconds(200);

std::chrono::nanoseconds Chrono(absl::Duration duration) { return absl::ToChronoNanoseconds(duration); }

// Runs `work` on `pool`, answers on the I/O thread.
template <typename Work>
asio::awaitable<std::invoke_result_t<Work>> OnPool(asio::thread_pool* pool, Work work) {
  auto task = [&work]() -> asio::awaitable<std::invoke_result_t<Work>> { co_return work(); };
  co_return co_await asio::co_spawn(*pool, std::move(task), asio::use_awaitable);
}

std::string Head(const HttpResponse& response, bool keep_alive, const char* framing) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", StatusPhrase(response.status), "\r\n");
  if (!response.content_type.empty()) absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, framing, keep_alive ? "" : "Connection: close\r\n", "\r\n");
  return head;
}

// GCC 12 destroys aggregates made within a co_await twice, hence plain arguments.
int ParseStatus(const error_code& ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return 431;
  if (ec == http::error::body_limit) return 413;
  return ec == http::error::bad_version ? 505 : 400;
}

const char* ParseMessage(const error_code& ec) {
  switch (ParseStatus(ec)) {
    case 431:
      return "The headers are too large.";
    case 413:
      return "The body is too large.";
    case 505:
      return "Only HTTP/1.0 and HTTP/1.1 are spoken here.";
    default:
      return "The request is not valid HTTP.";
  }
}

HttpResponse NoRoute(const RouteMatch& match) {
  HttpResponse response = ErrorResponse({match.status, StatusPhrase(match.status), ""});
  if (match.status == 307) response.headers.emplace_back("Location", match.detail);
  if (match.status == 405) response.headers.emplace_back("Allow", match.detail);
  return response;
}

bool IsJson(absl::string_view content_type) {
  const absl::string_view media = absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';')));
  return absl::EqualsIgnoreCase(media, "application/json");
}

}  // namespace

// Called by the engine's thread; outlives the connection if need be.
class HttpConnection::Waker {
 public:
  Waker(asio::io_context* io, HttpConnection* connection) : io_(io), connection_(connection) {}
  static void Signal(const std::shared_ptr<Waker>& self) {
    absl::MutexLock lock(&self->mutex_);
    if (self->connection_ == nullptr) return;
    // Detach runs on the I/O thread too, so the pointer cannot vanish between the check and the use.
    asio::post(*self->io_, [self] {
      HttpConnection* connection;
      {
        absl::MutexLock inner(&self->mutex_);
        connection = self->connection_;
      }
      if (connection != nullptr) connection->Wake();
    });
  }
  void Detach() {
    absl::MutexLock lock(&mutex_);
    connection_ = nullptr;
  }

 private:
  asio::io_context* const io_;
  absl::Mutex mutex_;
  HttpConnection* connection_ ABSL_GUARDED_BY(mutex_);
};

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, bool admin, HttpContext* context)
    : context_(context),
      admin_(admin),
      stream_(std::move(socket)),
      buffer_(context->state->options.limits.max_header_bytes + kSliceBytes),
      event_(*context->io),
      hangup_timer_(*context->io) {
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
}

HttpConnection::~HttpConnection() { context_->buffered_body_bytes -= buffered_; }

void HttpConnection::Close() {
  gone_ = true;
  error_code ignored;
  stream_.socket().close(ignored);
  StopWatch();
  Wake();
}

void HttpConnection::Wake() {
  woken_ = true;
  event_.cancel();
}

asio::awaitable<void> HttpConnection::WaitForWake() {
  if (!woken_) {
    error_code ignored;
    event_.expires_at(asio::steady_timer::time_point::max());
    co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  woken_ = false;
}

void HttpConnection::StartWatch() {
  const uint64_t watch = ++watch_;
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read,
      [self = shared_from_this(), watch](const error_code&) { self->OnReadable(watch); });
}

void HttpConnection::StopWatch() {
  if (watch_ % 2 == 0) return;
  ++watch_;
  error_code ignored;
  if (stream_.socket().is_open()) stream_.socket().cancel(ignored);
  hangup_timer_.cancel();
}

void HttpConnection::OnReadable(uint64_t watch) {
  if (watch != watch_) return;
  char byte;
  const ssize_t got = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0)
    return PollHangup(watch);  // a pipelined request: readable from now on, so look at the state instead
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    ++watch_;
    return StartWatch();
  }
  gone_ = true;
  Wake();
}

void HttpConnection::PollHangup(uint64_t watch) {
  if (watch != watch_ || !stream_.socket().is_open()) return;
  pollfd fd{stream_.socket().native_handle(), POLLRDHUP, 0};
  if (::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    gone_ = true;
    return Wake();
  }
  hangup_timer_.expires_after(kHangupPoll);
  hangup_timer_.async_wait(
      [self = shared_from_this(), watch](const error_code&) { self->PollHangup(watch); });
}

asio::awaitable<bool> HttpConnection::Send(std::string data) {
  for (size_t at = 0; at < data.size();) {
    const size_t slice = std::min(kSliceBytes, data.size() - at);
    error_code ec;
    stream_.expires_after(Chrono(context_->state->options.limits.write_timeout));
    const size_t sent = co_await stream_.async_write_some(asio::buffer(data.data() + at, slice),
                                                          asio::redirect_error(asio::use_awaitable, ec));
    if (ec || gone_) co_return false;
    at += sent;
  }
  stream_.expires_never();
  co_return true;
}

asio::awaitable<bool> HttpConnection::SendResponse(const Request& request, HttpResponse response) {
  last_status_ = response.status;
  const std::string framing = absl::StrCat("Content-Length: ", response.body.size(), "\r\n");
  std::string data = Head(response, request.keep_alive, framing.c_str());
  if (request.method != "HEAD") data += response.body;
  const bool sent = co_await Send(std::move(data));
  co_return sent&& request.keep_alive;
}

// Lets the client read our answer before the reset that unread input would cause.
asio::awaitable<void> HttpConnection::LingeringClose() {
  error_code ec;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  std::vector<char> waste(kSliceBytes);
  const auto end = std::chrono::steady_clock::now() + kLingerTime;
  for (size_t total = 0; !ec && !gone_ && total < kLingerBytes && std::chrono::steady_clock::now() < end;) {
    stream_.expires_after(kLingerSilence);
    total +=
        co_await stream_.async_read_some(asio::buffer(waste), asio::redirect_error(asio::use_awaitable, ec));
  }
}

asio::awaitable<void> HttpConnection::Refuse(const Request& request, int status, const char* message) {
  HttpResponse response = ErrorResponse(ApiError{status, message, ""});
  co_await RefuseWith(request, std::move(response));
}

asio::awaitable<void> HttpConnection::RefuseWith(const Request& request, HttpResponse response) {
  context_->state->metrics->OnRejected(absl::StrCat("http_", response.status));
  Request closing;
  closing.method = request.method;
  co_await SendResponse(closing, std::move(response));
  co_await LingeringClose();
}

asio::awaitable<bool> HttpConnection::WaitForFirstByte() {
  while (buffer_.size() == 0) {
    error_code ec;
    stream_.expires_after(Chrono(context_->state->options.limits.idle_timeout));
    const size_t got = co_await stream_.async_read_some(buffer_.prepare(4096),
                                                        asio::redirect_error(asio::use_awaitable, ec));
    if (ec || gone_) co_return false;
    buffer_.commit(got);
  }
  co_return true;
}

template <typename Parser>
asio::awaitable<bool> HttpConnection::ReadBody(Parser* parser, Request* request) {
  const ApiLimits& limits = context_->state->options.limits;
  stream_.expires_after(Chrono(limits.body_timeout));
  std::vector<char> piece(kSliceBytes);
  while (!parser->is_done()) {
    parser->get().body().data = piece.data();
    parser->get().body().size = piece.size();
    error_code ec;
    co_await http::async_read_some(stream_, buffer_, *parser, asio::redirect_error(asio::use_awaitable, ec));
    if (ec && ec != http::error::need_buffer) {
      if (ec != http::error::partial_message && ec != http::error::end_of_stream &&
          ec != beast::error::timeout)
        co_await Refuse(*request, ParseStatus(ec), ParseMessage(ec));
      co_return false;
    }
    const size_t got = piece.size() - parser->get().body().size;
    buffered_ += got;
    if ((context_->buffered_body_bytes += got) > limits.max_buffered_body_bytes) {
      co_await Refuse(*request, 503, "Too many large requests at once.");
      co_return false;
    }
    request->body.append(piece.data(), got);
  }
  co_return true;
}

asio::awaitable<HttpConnection::ReadResult> HttpConnection::ReadRequest(Request* request) {
  if (!co_await WaitForFirstByte()) co_return ReadResult::kClosed;
  busy_ = true;
  ++context_->busy_connections;
  const ApiLimits& limits = context_->state->options.limits;
  http::request_parser<http::buffer_body> parser;
  parser.header_limit(limits.max_header_bytes);
  parser.body_limit(limits.max_body_bytes);
  error_code ec;
  stream_.expires_after(Chrono(limits.header_timeout));
  co_await http::async_read_header(stream_, buffer_, parser, asio::redirect_error(asio::use_awaitable, ec));
  if (gone_ || ec == http::error::end_of_stream || ec == http::error::partial_message ||
      ec == beast::error::timeout)
    co_return ReadResult::kClosed;
  if (ec) {
    co_await Refuse(*request, ParseStatus(ec), ParseMessage(ec));
    co_return ReadResult::kRefused;
  }
  const auto& head = parser.get();
  request->method = std::string(head.method_string());
  request->target = std::string(head.target());
  request->content_type = std::string(head[http::field::content_type]);
  request->authorization = std::string(head[http::field::authorization]);
  request->keep_alive = parser.keep_alive();
  request->http_1_0 = head.version() == 10;
  if (std::distance(head.begin(), head.end()) > limits.max_header_fields) {
    co_await Refuse(*request, 431, "There are too many header fields.");
    co_return ReadResult::kRefused;
  }
  if (!request->http_1_0 && head.count(http::field::host) != 1) {
    co_await Refuse(*request, 400, "HTTP/1.1 needs one Host header.");
    co_return ReadResult::kRefused;
  }
  const RouteMatch match = MatchRoute(admin_, request->method, request->target);
  const bool wants_key = !admin_ && (match.spec == nullptr || match.spec->needs_key);
  if (wants_key && !context_->state->Authorized(request->authorization)) {
    co_await Refuse(*request, 401, "Unauthorized");
    co_return ReadResult::kRefused;
  }
  if (match.spec == nullptr && !parser.is_done()) {
    // No reason to wait for a body that nobody wants.
    HttpResponse response = NoRoute(match);
    co_await RefuseWith(*request, std::move(response));
    co_return ReadResult::kRefused;
  }
  if (!parser.is_done() && absl::EqualsIgnoreCase(std::string(head[http::field::expect]), "100-continue")) {
    if (!co_await Send("HTTP/1.1 100 Continue\r\n\r\n")) co_return ReadResult::kClosed;
  }
  if (!co_await ReadBody(&parser, request)) co_return ReadResult::kRefused;
  stream_.expires_never();
  co_return ReadResult::kRequest;
}

asio::awaitable<HttpResponse> HttpConnection::Dispatch(Request* request, const RouteMatch& match) {
  const std::shared_ptr<const ServedModel> model = context_->state->model();
  const Route route = match.spec->route;
  if (route == Route::kTokenize || route == Route::kDetokenize) {
    if (model == nullptr) co_return ErrorResponse({503, "The model is loading.", ""});
    const ApiLimits& limits = context_->state->options.limits;
    auto work = [&]() -> HttpResponse {
      try {
        BodyOrError body = route == Route::kTokenize ? Tokenize(request->body, *model, limits)
                                                     : Detokenize(request->body, *model, limits);
        if (auto* error = std::get_if<ApiError>(&body)) return ErrorResponse(*error);
        return HttpResponse{200, "application/json", std::get<std::string>(std::move(body)), {}};
      } catch (const std::exception&) {
        return ErrorResponse({500, "internal error", ""});
      }
    };
    co_return co_await OnPool(context_->pool, work);
  }
  if (route == Route::kSleep || route == Route::kWakeUp || route == Route::kResetPrefixCache) {
    const size_t mark = request->target.find('?');
    const std::string query = mark == std::string::npos ? "" : request->target.substr(mark + 1);
    auto work = [&] { return context_->state->AnswerLifecycle(route, query); };
    co_return co_await OnPool(context_->lifecycle_pool, work);
  }
  co_return context_->state->Answer(match);
}

// False: the connection ends here.
asio::awaitable<bool> HttpConnection::Answer(Request* request) {
  const RouteMatch match = MatchRoute(admin_, request->method, request->target);
  if (match.status != 200) {
    HttpResponse response = NoRoute(match);
    co_return co_await SendResponse(*request, std::move(response));
  }
  if (match.spec->json_body && !IsJson(request->content_type)) {
    HttpResponse response = ErrorResponse({415, "Content-Type must be application/json.", ""});
    co_return co_await SendResponse(*request, std::move(response));
  }
  const absl::Time start = absl::Now();
  bool usable;
  if (match.spec->route == Route::kCompletions || match.spec->route == Route::kChat) {
    usable = co_await Generate(request, match.spec->route == Route::kChat);
  } else {
    HttpResponse response = co_await Dispatch(request, match);
    usable = co_await SendResponse(*request, std::move(response));
  }
  if (match.spec->counted) {
    context_->state->metrics->OnHttpRequest(match.spec->path, request->method, last_status_,
                                            absl::ToDoubleSeconds(absl::Now() - start));
  }
  co_return usable;
}

asio::awaitable<bool> HttpConnection::Generate(Request* request, bool chat) {
  const std::shared_ptr<const ServedModel> model = context_->state->model();
  Metrics* metrics = context_->state->metrics.get();
  if (model == nullptr) {
    metrics->OnRejected("not_serving");
    HttpResponse response = ErrorResponse({503, "The model is loading.", ""});
    co_return co_await SendResponse(*request, std::move(response));
  }
  const ApiLimits& limits = context_->state->options.limits;
  auto work = [&]() -> GenerateOrError {
    try {
      GenerateOrError parsed = chat ? ParseChatRequest(request->body, *model, limits)
                                    : ParseCompletionRequest(request->body, *model, limits);
      std::string().swap(request->body);
      return parsed;
    } catch (const std::exception&) {
      return ApiError{500, "internal error", ""};
    }
  };
  GenerateOrError parsed = co_await OnPool(context_->pool, work);
  context_->buffered_body_bytes -= std::exchange(buffered_, 0);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    metrics->OnRejected("bad_request");
    HttpResponse response = ErrorResponse(*error);
    co_return co_await SendResponse(*request, std::move(response));
  }
  const GenerateParams params = std::get<GenerateParams>(std::move(parsed));
  Generation generation(*model, &params, context_->state->metrics);
  const auto waker = std::make_shared<Waker>(context_->io, this);
  if (const absl::Status status = generation.Submit([waker] { Waker::Signal(waker); }); !status.ok()) {
    waker->Detach();
    metrics->OnRejected(absl::IsResourceExhausted(status) ? "queue_full" : "not_serving");
    HttpResponse response = ErrorResponse(FromStatus(status));
    co_return co_await SendResponse(*request, std::move(response));
  }
  ++context_->state->load;
  StartWatch();
  const bool usable = co_await Follow(*request, params, *model, &generation);
  waker->Detach();
  StopWatch();
  --context_->state->load;
  co_return usable;
}

asio::awaitable<bool> HttpConnection::Follow(const Request& request, const GenerateParams& params,
                                             const ServedModel& model, Generation* generation) {
  const std::unique_ptr<ResponseWriter> writer = MakeResponseWriter(params, model);
  const auto usage = [&] {
    return UsageCounts{generation->prompt_tokens(), generation->completion_tokens(),
                       generation->cached_tokens()};
  };
  bool head_sent = false;
  while (!generation->done()) {
    co_await WaitForWake();
    if (gone_) {
      generation->Abort();
      last_status_ = 499;
      co_return false;
    }
    std::string out;
    for (ChoiceUpdate& update : generation->Take()) {
      if (update.delta.finish_reason == FinishReason::kError) {
        const ApiError error = FromStatus(update.delta.error);
        generation->Abort();
        if (!out.empty() && !co_await SendChunk(request, std::move(out), false)) co_return false;
        co_return co_await EndFailed(request, head_sent, error);
      }
      out += writer->OnUpdate(std::move(update), usage());
      if (!head_sent && !out.empty()) {
        head_sent = true;
        if (!co_await SendStreamHead(request)) co_return false;
      }
    }
    if (generation->overflowed()) {
      const ApiError error{500, "The client reads too slowly.", ""};
      co_return co_await EndFailed(request, head_sent, error);
    }
    if (!out.empty() && !co_await SendChunk(request, std::move(out), false)) {
      generation->Abort();
      co_return false;
    }
  }
  if (!params.stream) {
    HttpResponse response{200, "application/json", writer->Finish(usage()), {}};
    co_return co_await SendResponse(request, std::move(response));
  }
  if (!head_sent && !co_await SendStreamHead(request)) co_return false;
  co_return co_await SendChunk(request, writer->Finish(usage()), true);
}

asio::awaitable<bool> HttpConnection::EndFailed(const Request& request, bool head_sent,
                                                const ApiError& error) {
  if (!head_sent) {
    HttpResponse response = ErrorResponse(error);
    co_return co_await SendResponse(request, std::move(response));
  }
  co_return co_await SendChunk(request, StreamError(error), true);
}

asio::awaitable<bool> HttpConnection::SendStreamHead(const Request& request) {
  last_status_ = 200;
  HttpResponse response{200, "text/event-stream; charset=utf-8", "", {{"Cache-Control", "no-cache"}}};
  // HTTP/1.0 knows no chunks: the end of the connection ends the body.
  std::string head = request.http_1_0 ? Head(response, false, "")
                                      : Head(response, request.keep_alive, "Transfer-Encoding: chunked\r\n");
  co_return co_await Send(std::move(head));
}

asio::awaitable<bool> HttpConnection::SendChunk(const Request& request, std::string data, bool last) {
  if (!request.http_1_0)
    data = absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n", last ? "0\r\n\r\n" : "");
  const bool sent = co_await Send(std::move(data));
  co_return sent && (!last || (request.keep_alive && !request.http_1_0));
}

asio::awaitable<void> HttpConnection::Run() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  try {
    for (bool usable = true; usable && !gone_ && !context_->stopping;) {
      Request request;
      const ReadResult read = co_await ReadRequest(&request);
      usable = read == ReadResult::kRequest && co_await Answer(&request);
      context_->buffered_body_bytes -= std::exchange(buffered_, 0);
      if (std::exchange(busy_, false)) --context_->busy_connections;
    }
  } catch (const std::exception& error) {
    LogWarning("a connection ended: {}", CleanMessage(error.what()));
  }
  if (std::exchange(busy_, false)) --context_->busy_connections;
  StopWatch();
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

}  // namespace somnus
