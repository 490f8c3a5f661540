// HttpConnection's other half: a request that generates is followed from here until its answer has been sent
// or its client has left.
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <chrono>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/http_connection.h"
#include "coordinator/api/http_parts.h"
#include "coordinator/metrics/metrics.h"

namespace somnus {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kHangupPoll = std::chrono::milliseconds(200);

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
  GenerateParams params = std::get<GenerateParams>(std::move(parsed));
  if (request->id.size() > kMaxRequestIdBytes) {
    HttpResponse response = ErrorResponse(BadRequest("request_id", "X-Request-Id is longer than 1024 bytes"));
    co_return co_await SendResponse(*request, std::move(response));
  }
  if (!request->id.empty()) params.response_id = absl::StrCat(chat ? "chatcmpl-" : "cmpl-", request->id);
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
  std::string head = request.http_1_0
                         ? ResponseHead(response, false, "")
                         : ResponseHead(response, request.keep_alive, "Transfer-Encoding: chunked\r\n");
  co_return co_await Send(std::move(head));
}

asio::awaitable<bool> HttpConnection::SendChunk(const Request& request, std::string data, bool last) {
  if (!request.http_1_0)
    data = absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n", last ? "0\r\n\r\n" : "");
  const bool sent = co_await Send(std::move(data));
  co_return sent && (!last || (request.keep_alive && !request.http_1_0));
}

}  // namespace somnus
