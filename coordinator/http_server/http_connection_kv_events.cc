// HttpConnection's part for streams of KV events, which end with the client or with the server.
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/on_pool.h"
#include "coordinator/http_server/connection_waker.h"
#include "coordinator/http_server/http_connection.h"
#include "coordinator/http_server/kv_event_route.h"

namespace somnus {

namespace asio = boost::asio;

namespace {

constexpr char kEnd[] = ": the server ends\n\n";

}  // namespace

asio::awaitable<bool> HttpConnection::FollowKvEvents(Request* request, const RouteMatch& match) {
  context_->buffered_body_bytes -= std::exchange(buffered_, 0);
  const int32_t most = context_->state->options.limits.max_kv_event_watchers;
  const auto waker = std::make_shared<ConnectionWaker>(context_->io, this);
  const int32_t watchers = ++context_->kv_event_watchers;
  const absl::Cleanup leave = [this, waker] {
    waker->Detach();
    --context_->kv_event_watchers;
  };
  if (watchers > most) {
    HttpResponse response =
        ErrorResponse({429, absl::StrCat(most, " clients follow KV events already, and no more may."), ""});
    co_return co_await SendResponse(*request, std::move(response));
  }
  const size_t mark = request->target.find('?');
  const std::string query = mark == std::string::npos ? "" : request->target.substr(mark + 1);
  std::variant<std::unique_ptr<KvEventReader>, HttpResponse> opened =
      OpenKvEvents(*context_->state, *match.spec, query, request->last_event_id,
                   [waker] { ConnectionWaker::Signal(waker); });
  bool usable = false;
  if (auto* error = std::get_if<HttpResponse>(&opened)) {
    usable = co_await SendResponse(*request, std::move(*error));
  } else {
    StartWatch();
    usable = co_await SendKvEvents(*request, std::get<std::unique_ptr<KvEventReader>>(opened).get());
    StopWatch();
  }
  co_return usable;
}

// The head goes at once. JSON is made on the request pool; a stream that is silent for too long gets a
// comment.
asio::awaitable<bool> HttpConnection::SendKvEvents(const Request& request, KvEventReader* reader) {
  const absl::Duration keepalive = context_->state->options.limits.sse_keepalive;
  const absl::Duration patience = keepalive > absl::ZeroDuration() ? keepalive : absl::InfiniteDuration();
  std::string head = EventStreamHead(request.http_1_0, request.keep_alive, request.response_headers);
  last_status_ = 200;
  if (request.method == "HEAD") {
    const bool sent = co_await Send(std::move(head));
    co_return sent&& request.keep_alive && !request.http_1_0;
  }
  auto read = [reader] { return ReadKvEvents(reader); };
  for (bool woken = true;;) {
    std::string events = co_await OnPool(context_->request_pool, read);
    const bool ended = events.empty() && reader->ended();
    if (events.empty() && (!woken || !head.empty())) events = kSseComment;
    if (ended) events = kEnd;
    if (gone_) break;
    if (events.empty()) {
      woken = co_await WaitForWake(patience);
      continue;
    }
    std::string first = std::exchange(head, "");
    const bool usable = co_await SendChunk(request, std::move(first), std::move(events), ended);
    if (ended) co_return usable;
    if (!usable) break;
    woken = true;
  }
  last_status_ = 499;
  co_return false;
}

}  // namespace somnus
