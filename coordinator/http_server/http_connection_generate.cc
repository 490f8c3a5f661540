// HttpConnection's part for generating requests: from the body until the response has been sent or the client
// has left.
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/redirect_error.hpp>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/freed_memory.h"
#include "coordinator/http/api_key.h"
#include "coordinator/http/on_pool.h"
#include "coordinator/http_server/connection_waker.h"
#include "coordinator/http_server/grammar_wait.h"
#include "coordinator/http_server/http_connection.h"
#include "coordinator/messages/messages_request.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/grammar_request.h"
#include "coordinator/openai/prefix_request.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/responses/responses_request.h"
#include "coordinator/token_routes/tokens_request.h"

namespace somnus {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr int kClientHasLeft = 499;  // as nginx counts such requests
constexpr auto kHangupPoll = std::chrono::milliseconds(200);

// Left out where the version is not known.
void AddWeightsVersion(int64_t version, HttpResponse* response) {
  if (version > 0) response->headers.emplace_back("X-Weight-Version", absl::StrCat(version));
}

std::string StreamHead(const HttpRequest& request, int64_t weights_version) {
  HttpResponse response;
  response.headers = request.response_headers;
  AddWeightsVersion(weights_version, &response);
  return EventStreamHead(request.http_1_0, request.keep_alive, std::move(response.headers));
}

EmbeddingOptions::Api EmbeddingsApiOf(Route route) {
  return route == Route::kPooling ? EmbeddingOptions::Api::kPooling : EmbeddingOptions::Api::kEmbeddings;
}

GenerateOrError Parse(Route route, absl::string_view body, const ServedModel& model, const ApiState& state) {
  const ApiLimits& limits = state.options.limits;
  if (Embeds(route)) return ParseEmbeddingsRequest(body, EmbeddingsApiOf(route), model, limits);
  if (route == Route::kPinPrefix) return ParsePrefixRequest(body, model, limits);
  if (std::optional<ApiError> error = CheckGenerates(model)) return *std::move(error);
  if (route == Route::kResponses) return ParseResponsesRequest(body, model, limits, state.responses);
  if (route == Route::kMessages) return ParseMessagesRequest(body, model, limits);
  if (route == Route::kGenerateTokens) return ParseTokensRequest(body, model, limits);
  return route == Route::kChat ? ParseChatRequest(body, model, limits)
                               : ParseCompletionRequest(body, model, limits);
}

const char* IdPrefix(Route route) {
  if (route == Route::kMessages) return kMessageIdPrefix;
  if (Embeds(route)) return EmbeddingsIdPrefix(EmbeddingsApiOf(route));
  if (route == Route::kGenerateTokens) return kTokensIdPrefix;
  return route == Route::kChat ? "chatcmpl-" : "cmpl-";
}

// As vLLM's metric of tool calls has the types.
const char* RequestTypeOf(Route route) {
  if (route == Route::kChat) return "chat_completions";
  return route == Route::kResponses ? "responses" : "other";
}

}  // namespace

void HttpConnection::Wake() {
  woken_ = true;
  event_.cancel();
}

asio::awaitable<bool> HttpConnection::WaitForWake(absl::Duration limit) {
  if (!woken_) {
    error_code ignored;
    if (limit == absl::InfiniteDuration()) {
      event_.expires_at(asio::steady_timer::time_point::max());
    } else {
      event_.expires_after(absl::ToChronoNanoseconds(limit));
    }
    co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return std::exchange(woken_, false);
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
    return PollHangup(
        watch);  // a pipelined request: the socket stays readable, so the state is polled instead
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    ++watch_;
    return StartWatch();
  }
  NoteGone();
  Wake();
}

void HttpConnection::PollHangup(uint64_t watch) {
  if (watch != watch_ || !stream_.socket().is_open()) return;
  pollfd fd{stream_.socket().native_handle(), POLLRDHUP, 0};
  if (::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    NoteGone();
    return Wake();
  }
  hangup_timer_.expires_after(kHangupPoll);
  hangup_timer_.async_wait(
      [self = shared_from_this(), watch](const error_code&) { self->PollHangup(watch); });
}

asio::awaitable<bool> HttpConnection::Generate(Request* request, Route route) {
  if (context_->state->loading()) {
    context_->state->metrics->OnRejected("not_serving");
    HttpResponse response = context_->state->LoadingResponse();
    co_return co_await SendResponse(*request, std::move(response));
  }
  const auto waker = std::make_shared<ConnectionWaker>(context_->io, this);
  SharedModel model;
  auto work = [&] {
    const InputMemory memory(request->body.size());
    model = context_->state->ModelOf(request->body);
    return StartGeneration(request, route, model, waker);
  };
  Started started = co_await OnPool(context_->request_pool, work);
  if (auto* waiting = std::get_if<std::unique_ptr<GenerateParams>>(&started)) {
    const std::unique_ptr<GenerateParams> params = std::move(*waiting);
    if (std::optional<ApiError> error = co_await SetConstraint(*model, params.get(), waker)) {
      model->metrics->OnRejected("bad_request");
      started = *std::move(error);
    } else {
      auto submit = [&] { return SubmitGeneration(route, model, std::move(*params), waker); };
      started = co_await OnPool(context_->request_pool, submit);
    }
  }
  context_->buffered_body_bytes -= std::exchange(buffered_, 0);
  if (const auto* error = std::get_if<ApiError>(&started)) {
    waker->Detach();
    HttpResponse response = ErrorResponse(*error);
    co_return co_await SendResponse(*request, std::move(response));
  }
  const auto producer = std::get<std::shared_ptr<ResponseProducer>>(std::move(started));
  ++context_->state->load;
  StartWatch();
  const bool usable = co_await Follow(*request, producer.get(), *model->engine);
  summary_ = producer->Summary();
  // The engine may tell of the end before or after this moment.
  if (last_status_ == kClientHasLeft) summary_->finish_reason = "abort";
  waker->Detach();
  StopWatch();
  --context_->state->load;
  co_return usable;
}

asio::awaitable<std::optional<ApiError>> HttpConnection::SetConstraint(
    const ServedModel& model, GenerateParams* params, std::shared_ptr<ConnectionWaker> waker) {
  const auto grammar = std::make_shared<GrammarWait>();
  MakeConstraint(model, *params, [grammar, waker](ConstraintOrError result) {
    grammar->Set(std::move(result));
    ConnectionWaker::Signal(waker);
  });
  std::optional<ConstraintOrError> made;
  while (!(made = grammar->Take()).has_value()) co_await WaitForWake(absl::InfiniteDuration());
  if (auto* error = std::get_if<ApiError>(&*made)) co_return std::move(*error);
  params->constraint = std::get<std::shared_ptr<const TokenConstraint>>(*std::move(made));
  co_return std::nullopt;
}

HttpConnection::Started HttpConnection::StartGeneration(Request* request, Route route,
                                                        const std::shared_ptr<const ServedModel>& model,
                                                        const std::shared_ptr<ConnectionWaker>& waker) {
  const ApiLimits& limits = context_->state->options.limits;
  const std::shared_ptr<Metrics>& metrics = model->metrics;
  try {
    GenerateOrError parsed = Parse(route, request->body, *model, *context_->state);
    std::string().swap(request->body);
    if (request->id.size() > kMaxRequestIdBytes)
      parsed = BadRequest("X-Request-Id",
                          absl::StrCat("X-Request-Id is longer than ", kMaxRequestIdBytes, " bytes"));
    const TimesOrError times = TimesOfHeaders(request->timeout, request->ttft, request->received, limits);
    if (const auto* error = std::get_if<ApiError>(&times)) parsed = *error;
    if (auto* error = std::get_if<ApiError>(&parsed)) {
      metrics->OnRejected("bad_request");
      return std::move(*error);
    }
    GenerateParams params = std::get<GenerateParams>(std::move(parsed));
    params.times = std::get<RequestTimes>(times);
    params.request_type = RequestTypeOf(route);
    if (params.user.empty()) params.user = UserOfKey(request->authorization);
    // Later requests name a response of kResponses by the id, which therefore no client may choose.
    if (!request->id.empty() && route != Route::kResponses)
      params.response_id = absl::StrCat(IdPrefix(route), request->id);
    if (AwaitsGrammar(params)) return std::make_unique<GenerateParams>(std::move(params));
    if (const std::optional<ApiError> error = AwaitConstraint(*model, &params)) return *error;
    return SubmitGeneration(route, model, std::move(params), waker);
  } catch (const std::exception&) {
    return ApiError{500, "internal error", ""};
  }
}

HttpConnection::Started HttpConnection::SubmitGeneration(Route route,
                                                         const std::shared_ptr<const ServedModel>& model,
                                                         GenerateParams params,
                                                         const std::shared_ptr<ConnectionWaker>& waker) {
  const std::shared_ptr<Metrics>& metrics = model->metrics;
  try {
    if (route == Route::kPinPrefix) {
      absl::StatusOr<std::shared_ptr<PrefixClaim>> claim = ClaimPrefix(model, params);
      if (!claim.ok()) {
        metrics->OnRejected("not_pinned");
        return PinError(claim.status(), params);
      }
      params.prefix = *std::move(claim);
    }
    const auto producer =
        std::make_shared<ResponseProducer>(model, std::move(params), metrics, context_->post_output,
                                           context_->state->options.limits, context_->response_budget);
    const absl::Status status = producer->Submit([waker] { ConnectionWaker::Signal(waker); });
    if (status.ok()) return producer;
    metrics->OnRejected(RejectionReason(status), status);
    return FromStatus(status);
  } catch (const std::exception&) {
    return ApiError{500, "internal error", ""};
  }
}

// Sends the producer's bytes until the producer's end, or until the client has left. A stream that is silent
// for too long gets a comment, so that proxies do not close the connection: the tokens may wait for a
// recovery or a wake-up. A stream that waits from the beginning gets a comment at once, with the reason. The
// head goes with the first comment, after which an error can only be an event.
asio::awaitable<bool> HttpConnection::Follow(const Request& request, ResponseProducer* producer,
                                             const Engine& engine) {
  const absl::Duration keepalive = context_->state->options.limits.sse_keepalive;
  const bool comments = producer->params().stream && keepalive > absl::ZeroDuration();
  absl::Duration patience = !comments                 ? absl::InfiniteDuration()
                            : IsReady(engine.state()) ? keepalive
                                                      : absl::ZeroDuration();
  for (bool head_sent = false;;) {
    const bool woken = co_await WaitForWake(patience);
    if (gone_) {
      producer->Abort();
      last_status_ = kClientHasLeft;
      co_return false;
    }
    if (comments) patience = keepalive;
    // Bytes that are made after this call have the version; bytes that were made before are taken, and go
    // with the head.
    if (!woken && !head_sent) producer->TellWeightsVersionInEvents();
    ResponseProducer::Output output = producer->Take();
    const bool silent = output.bytes.empty() && !output.done && !output.error.has_value();
    if (!woken && silent) output.bytes = WaitingComment(engine.state());
    if (output.error.has_value() && head_sent) {
      output.bytes = std::move(output.error_event);
      output.error.reset();
    }
    if (output.error.has_value()) {
      HttpResponse response = ErrorResponse(*output.error);
      co_return co_await SendResponse(request, std::move(response));
    }
    if (output.bytes.empty()) continue;
    if (!producer->params().stream) {
      HttpResponse response{200, "application/json", std::move(output.bytes), {}};
      AddWeightsVersion(output.weights_version, &response);
      co_return co_await SendResponse(request, std::move(response));
    }
    std::string head;
    if (!std::exchange(head_sent, true)) head = StreamHead(request, output.weights_version);
    last_status_ = 200;
    const bool usable = co_await SendChunk(request, std::move(head), std::move(output.bytes), output.done);
    if (output.done) co_return usable;
    if (!usable) {  // a write finds that the client has left, before the watch does
      producer->Abort();
      last_status_ = kClientHasLeft;
      co_return false;
    }
  }
}

asio::awaitable<bool> HttpConnection::SendChunk(const Request& request, std::string head, std::string data,
                                                bool last) {
  if (request.http_1_0) {
    data = head + data;
  } else {
    data = absl::StrCat(head, absl::Hex(data.size()), "\r\n", data, "\r\n", last ? "0\r\n\r\n" : "");
  }
  const bool sent = co_await Send(std::move(data));
  co_return sent && (!last || (request.keep_alive && !request.http_1_0));
}

}  // namespace somnus
