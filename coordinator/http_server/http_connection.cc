#include "coordinator/http_server/http_connection.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/freed_memory.h"
#include "base/log.h"
#include "coordinator/http/api_key.h"
#include "coordinator/http/content_coding.h"
#include "coordinator/http/no_route.h"
#include "coordinator/http/on_pool.h"
#include "coordinator/http_server/request_gate.h"
#include "coordinator/messages/messages_error.h"
#include "coordinator/messages/messages_request.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/token_routes/render_request.h"

namespace somnus {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kSliceBytes = 64 << 10;

// GCC 12 destroys aggregates made within a co_await twice, hence plain arguments.
int ParseStatus(const error_code& ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return 431;
  if (ec == http::error::body_limit) return 413;
  return ec == http::error::bad_version ? 505 : 400;
}

// Whether a read has ended because of bytes that the client has sent, not because the client sends no more.
bool IsMalformed(const error_code& ec) {
  return ec.category() == http::make_error_code(http::error::end_of_stream).category() &&
         ec != http::error::end_of_stream && ec != http::error::partial_message;
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

// The label of a metric: a client may send any word as the method.
std::string MethodLabel(const std::string& method) {
  for (const char* known : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}) {
    if (method == known) return method;
  }
  return "none";
}

bool IsJson(absl::string_view content_type) {
  const absl::string_view media = absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';')));
  return absl::EqualsIgnoreCase(media, "application/json");
}

bool ReadsText(Route route) {
  return route == Route::kTokenize || route == Route::kDetokenize || route == Route::kCountTokens ||
         route == Route::kRenderChat || route == Route::kRenderCompletion;
}

// The body of the response of a route for which ReadsText is true.
BodyOrError AnswerTokens(Route route, absl::string_view body, const ServedModel& model,
                         const ApiLimits& limits) {
  switch (route) {
    case Route::kRenderChat:
      return RenderChatRequest(body, model, limits);
    case Route::kRenderCompletion:
      return RenderCompletionRequest(body, model, limits);
    case Route::kCountTokens:
      return CountMessageTokens(body, model, limits);
    case Route::kTokenize:
      return Tokenize(body, model, limits);
    default:
      return Detokenize(body, model, limits);
  }
}

// The response to a request that does not say that the body is JSON. A client that sends no content type has
// most likely forgotten the body.
HttpResponse NoJson(bool has_content_type, bool has_body) {
  if (has_content_type) return ErrorResponse({415, "Content-Type must be application/json.", ""});
  return ErrorResponse(BadRequest("", has_body ? "Content-Type is missing; it must be application/json."
                                               : "The request has no body; it must be a JSON object."));
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                               bool admin, HttpContext* context)
    : context_(context),
      admin_(admin),
      stream_(std::move(socket), std::move(tls)),
      buffer_(context->state->options.limits.max_header_bytes + kSliceBytes),
      peer_(stream_.PeerText()),
      event_(*context->io),
      hangup_timer_(*context->io) {
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
}

HttpConnection::~HttpConnection() { context_->buffered_body_bytes -= buffered_; }

void HttpConnection::NoteGone() {
  gone_ = true;
  if (caller_left_ != nullptr) *caller_left_ = true;
}

void HttpConnection::Close() {
  NoteGone();
  waiting_since_ = absl::InfiniteDuration();
  error_code ignored;
  stream_.socket().close(ignored);
  StopWatch();
  Wake();
}

asio::awaitable<bool> HttpConnection::Send(std::string data) {
  for (size_t at = 0; at < data.size();) {
    const size_t slice = std::min(kSliceBytes, data.size() - at);
    error_code ec;
    stream_.ExpiresAfter(context_->state->options.limits.write_timeout);
    const size_t sent = co_await stream_.async_write_some(asio::buffer(data.data() + at, slice),
                                                          asio::redirect_error(asio::use_awaitable, ec));
    if (ec || gone_) co_return false;
    at += sent;
  }
  stream_.ExpiresNever();
  co_return true;
}

asio::awaitable<bool> HttpConnection::SendResponse(const Request& request, HttpResponse response) {
  last_status_ = response.status;
  if (response.error.has_value() && IsMessagesTarget(request.target))
    response.body = MessagesErrorBody(*response.error);
  for (const auto& header : request.response_headers) response.headers.push_back(header);
  // Neither a response with status 204 nor one with 304 has a body or a Content-Length.
  const bool has_no_body = response.status == 204 || response.status == 304;
  const std::string framing =
      has_no_body ? "" : absl::StrCat("Content-Length: ", response.body.size(), "\r\n");
  const std::string head = ResponseHead(response, request.keep_alive, framing.c_str());
  if (request.method == "HEAD") response.body.clear();
  // Within the body's own string: a large response must not be in memory twice while a slow client reads it.
  std::string data = std::move(response.body);
  data.insert(0, head);
  const bool sent = co_await Send(std::move(data));
  co_return sent&& request.keep_alive;
}

asio::awaitable<void> HttpConnection::LingeringClose() {
  co_await stream_.EndTls(context_->state->options.limits.linger_silence);
  co_await Drain();
}

// Reads and drops the client's input, so that the client can read the response: a close with unread input
// resets the connection.
asio::awaitable<void> HttpConnection::Drain() {
  error_code ec;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  std::vector<char> waste(kSliceBytes);
  const ApiLimits& limits = context_->state->options.limits;
  const size_t most = static_cast<size_t>(limits.max_linger_bytes);
  const MonotonicTime end = MonotonicNow() + limits.linger_timeout;
  for (size_t total = 0; !ec && !gone_ && total < most && MonotonicNow() < end;) {
    stream_.ExpiresAfter(limits.linger_silence);
    total += co_await stream_.tcp().async_read_some(asio::buffer(waste),
                                                    asio::redirect_error(asio::use_awaitable, ec));
  }
}

asio::awaitable<void> HttpConnection::Refuse(const Request& request, int status, const char* message) {
  HttpResponse response = ErrorResponse(ApiError{status, message, ""});
  co_await RefuseWith(request, std::move(response));
}

asio::awaitable<void> HttpConnection::RefuseWith(const Request& request, HttpResponse response) {
  CountRefusal(request, response.status);
  Request closing;
  closing.method = request.method;
  closing.target = request.target;
  closing.response_headers = request.response_headers;
  co_await SendResponse(closing, std::move(response));
  co_await LingeringClose();
}

asio::awaitable<bool> HttpConnection::Open() {
  const HttpStream::Opening opening = co_await stream_.Open(context_->state->options.limits.header_timeout);
  if (opening == HttpStream::Opening::kOpen) co_return true;
  if (gone_ || opening == HttpStream::Opening::kClosed) co_return false;
  if (opening == HttpStream::Opening::kNoTls) {
    const Request none;
    co_await Refuse(none, 400, "This port speaks HTTPS, not HTTP.");
  } else {
    context_->state->metrics->OnRejected("tls_handshake");
    co_await Drain();
  }
  co_return false;
}

asio::awaitable<bool> HttpConnection::WaitForFirstByte() {
  while (buffer_.size() == 0) {
    error_code ec;
    stream_.ExpiresAfter(context_->state->options.limits.idle_timeout);
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
  stream_.ExpiresAfter(limits.body_timeout);
  std::vector<char> piece(kSliceBytes);
  while (!parser->is_done()) {
    parser->get().body().data = piece.data();
    parser->get().body().size = piece.size();
    error_code ec;
    co_await http::async_read_some(stream_, buffer_, *parser, asio::redirect_error(asio::use_awaitable, ec));
    if (ec && ec != http::error::need_buffer) {
      if (ec == beast::error::timeout) CountRefusal(*request, 408);
      if (IsMalformed(ec)) co_await Refuse(*request, ParseStatus(ec), ParseMessage(ec));
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

// buffered_ counts the compressed body and the text until the text has replaced the compressed body.
asio::awaitable<bool> HttpConnection::DecodeBody(Request* request) {
  const std::optional<ContentCoding> coding = ParseContentCoding(request->content_encoding);
  if (request->body.empty() || coding == ContentCoding::kIdentity) co_return true;
  const ApiLimits& limits = context_->state->options.limits;
  const auto compressed = static_cast<int64_t>(request->body.size());
  const auto reserve = [&](int64_t bytes) {
    buffered_ += bytes;
    return (context_->buffered_body_bytes += bytes) <= limits.max_buffered_body_bytes;
  };
  auto work = [&] { return DecodeContent(*coding, limits.max_body_bytes, reserve, &request->body); };
  const std::optional<ApiError> error = co_await OnPool(context_->request_pool, work);
  buffered_ -= compressed;
  context_->buffered_body_bytes -= compressed;
  if (!error.has_value()) co_return true;
  HttpResponse response = ErrorResponse(*error);
  co_await RefuseWith(*request, std::move(response));
  co_return false;
}

asio::awaitable<HttpConnection::ReadResult> HttpConnection::ReadRequest(Request* request) {
  if (!co_await WaitForFirstByte()) co_return ReadResult::kClosed;
  busy_ = true;
  request_start_ = MonotonicNow();
  ++context_->busy_connections;
  const ApiLimits& limits = context_->state->options.limits;
  http::request_parser<http::buffer_body> parser;
  parser.header_limit(limits.max_header_bytes);
  parser.body_limit(limits.max_body_bytes);
  error_code ec;
  stream_.ExpiresAfter(limits.header_timeout);
  co_await http::async_read_header(stream_, buffer_, parser, asio::redirect_error(asio::use_awaitable, ec));
  const auto& head = parser.get();
  ReadHead(head, context_->state->options.root_path, request);
  request->of_operators = context_->state->IsForOperators(admin_, request->method, request->target);
  if (!gone_ && ec == beast::error::timeout) CountRefusal(*request, 408);
  if (gone_ || (ec && !IsMalformed(ec))) co_return ReadResult::kClosed;
  if (ec) {
    co_await Refuse(*request, ParseStatus(ec), ParseMessage(ec));
    co_return ReadResult::kRefused;
  }
  request->keep_alive = parser.keep_alive();
  AddResponseHeaders(*context_->state, request);
  std::optional<HttpResponse> refusal = RefusalOf(*context_->state, *request, !parser.is_done());
  if (refusal.has_value()) {
    co_await RefuseWith(*request, *std::move(refusal));
    co_return ReadResult::kRefused;
  }
  if (!parser.is_done() && request->expects_continue) {
    if (!co_await Send("HTTP/1.1 100 Continue\r\n\r\n")) co_return ReadResult::kClosed;
  }
  if (!co_await ReadBody(&parser, request)) co_return ReadResult::kRefused;
  if (!co_await DecodeBody(request)) co_return ReadResult::kRefused;
  stream_.ExpiresNever();
  request->received = MonotonicNow();
  co_return ReadResult::kRequest;
}

asio::awaitable<HttpResponse> HttpConnection::Dispatch(Request* request, const RouteMatch& match) {
  const Route route = match.spec->route;
  if (ReadsText(route)) {
    if (context_->state->loading()) co_return context_->state->LoadingResponse();
    const ApiLimits& limits = context_->state->options.limits;
    auto work = [&]() -> HttpResponse {
      const InputMemory memory(request->body.size());
      try {
        const SharedModel model = context_->state->ModelOf(request->body);
        BodyOrError body = AnswerTokens(route, request->body, *model, limits);
        if (auto* error = std::get_if<ApiError>(&body)) return ErrorResponse(*error);
        return HttpResponse{200, "application/json", std::get<std::string>(std::move(body)), {}};
      } catch (const std::exception&) {
        return ErrorResponse({500, "internal error", ""});
      }
    };
    co_return co_await OnPool(context_->request_pool, work);
  }
  if (route == Route::kRoot || route == Route::kConsoleFile)
    co_return context_->state->AnswerConsole(admin_, match, request->accept, request->if_none_match);
  const size_t mark = request->target.find('?');
  const std::string query = mark == std::string::npos ? "" : request->target.substr(mark + 1);
  if (IsLifecycle(route) && !WaitsForNobody(route)) co_return co_await CallLifecycle(*request, match, query);
  if (WaitsForNobody(route)) {
    auto work = [&] {
      const InputMemory memory(request->body.size());
      return IsLifecycle(route) ? context_->state->AnswerLifecycle(*match.spec, query, request->body)
                                : context_->state->Answer(request->of_operators, match, query);
    };
    co_return co_await OnPool(context_->request_pool, work);
  }
  co_return context_->state->Answer(request->of_operators, match, query);
}

asio::awaitable<HttpResponse> HttpConnection::CallLifecycle(const Request& request, const RouteMatch& match,
                                                            const std::string& query) {
  const auto left = std::make_shared<std::atomic<bool>>(gone_);
  const std::string key_name =
      context_->state->KeyNameOf(request.of_operators, match.spec->key, request.authorization);
  const Caller caller = {.name = NamedClient(key_name, peer_ + " (HTTP)"),
                         .has_left = [left] { return left->load(); }};
  auto work = [&] {
    const InputMemory memory(request.body.size());
    const CallerScope scope(caller);
    return context_->state->AnswerLifecycle(*match.spec, query, request.body);
  };
  caller_left_ = left;
  StartWatch();
  const absl::StatusOr<HttpResponse> response = co_await OnThread(context_->lifecycle_threads, work);
  StopWatch();
  caller_left_ = nullptr;
  co_return response.ok() ? *response : ErrorResponse(FromStatus(response.status()));
}

void HttpConnection::Count(const Request& request, const RouteMatch& match, int status, MonotonicTime start) {
  if (match.spec != nullptr && !match.spec->counted) return;
  context_->state->metrics->OnHttpRequest(match.spec == nullptr ? "none" : match.spec->path,
                                          MethodLabel(request.method), status,
                                          absl::ToDoubleSeconds(MonotonicNow() - start));
  if (context_->state->options.recorder != nullptr) Record(request, match, status);
}

void HttpConnection::Record(const Request& request, const RouteMatch& match, int status) {
  RequestRecord record;
  record.protocol = "http";
  record.client = peer_;
  record.request_id = request.id;
  record.traceparent = request.traceparent;
  record.tracestate = request.tracestate;
  record.method = MethodLabel(request.method);
  record.route = match.spec == nullptr ? "" : match.spec->path;
  record.of_operators = request.of_operators;
  record.generates = match.spec != nullptr && Generates(match.spec->route);
  record.status = status;
  record.end = absl::Now();
  record.begin = record.end - (MonotonicNow() - request_start_);
  record.summary = std::exchange(summary_, std::nullopt);
  context_->state->options.recorder->Record(record);
}

void HttpConnection::CountRefusal(const Request& request, int status) {
  context_->state->metrics->OnRejected(absl::StrCat("http_", status));
  Count(request, MatchRoute(request.of_operators, request.method, request.target), status, request_start_);
}

// Returns false when the connection must end.
asio::awaitable<bool> HttpConnection::Answer(Request* request) {
  const RouteMatch match = MatchRoute(request->of_operators, request->method, request->target);
  const MonotonicTime start = MonotonicNow();
  const bool usable = co_await Respond(request, match);
  Count(*request, match, last_status_, start);
  co_return usable;
}

asio::awaitable<bool> HttpConnection::Respond(Request* request, const RouteMatch& match) {
  if (IsPreflight(*context_->state, *request)) {
    HttpResponse response = context_->state->cors.Preflight(request->origin, request->preflight_method,
                                                            request->preflight_headers);
    co_return co_await SendResponse(*request, std::move(response));
  }
  if (match.status != 200) {
    HttpResponse response =
        NoRoute(request->of_operators, context_->state->admin_port, request->method, request->target, match);
    co_return co_await SendResponse(*request, std::move(response));
  }
  if (match.spec->json_body && !IsJson(request->content_type)) {
    HttpResponse response = NoJson(!request->content_type.empty(), !request->body.empty());
    co_return co_await SendResponse(*request, std::move(response));
  }
  if (Generates(match.spec->route)) co_return co_await Generate(request, match.spec->route);
  if (match.spec->route == Route::kKvEvents) co_return co_await FollowKvEvents(request, match);
  HttpResponse response = co_await Dispatch(request, match);
  co_return co_await SendResponse(*request, std::move(response));
}

asio::awaitable<void> HttpConnection::Run() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  try {
    for (bool usable = co_await Open(); usable && !gone_ && !context_->stopping;) {
      Request request;
      waiting_since_ = MonotonicNow();
      const ReadResult read = co_await ReadRequest(&request);
      waiting_since_ = absl::InfiniteDuration();
      usable = read == ReadResult::kRequest && co_await Answer(&request);
      context_->buffered_body_bytes -= std::exchange(buffered_, 0);
      if (std::exchange(busy_, false)) --context_->busy_connections;
    }
  } catch (const std::exception& error) {
    LogWarning("a connection ended: {}", CleanMessage(error.what()));
  }
  if (std::exchange(busy_, false)) --context_->busy_connections;
  StopWatch();
  if (!gone_) co_await stream_.EndTls(context_->state->options.limits.linger_silence);
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.socket().close(ignored);
}

}  // namespace somnus
