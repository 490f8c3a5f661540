#include "tools/bench/serving/load_client.h"

#include <openssl/ssl.h>

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>. clang-format off
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/status_macros.h"
#include "tools/http/json_fields.h"
#include "tools/http/response_reader.h"
#include "tools/http/sse.h"

namespace somnus::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Reads the chunks of one answer: arrival times of text, usage, errors.
class AnswerTimer {
 public:
  AnswerTimer(RequestRecord* record, Clock::time_point start) : record_(record), start_(start) {}

  void OnEvent(const std::string& data) {
    if (data == "[DONE]") return;
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) {
      record_->error = "bad event";
    } else if (event.contains("error")) {
      record_->error = "error event";
    } else {
      if (event.contains("usage") && event["usage"].is_object()) {
        record_->prompt_tokens = IntAt(event["usage"], "prompt_tokens");
        record_->output_tokens = IntAt(event["usage"], "completion_tokens");
        has_usage_ = true;
      }
      if (event.contains("choices") && event["choices"].is_array() && !event["choices"].empty()) {
        OnChoice(event["choices"][0]);
      }
    }
  }

  // After the last byte.
  void Finish() {
    record_->end_s = Since(start_);
    if (!record_->error.empty()) return;
    if (!finished_) record_->error = "no finish_reason";
    if (!has_usage_) record_->output_tokens = arrivals_;
    if (arrivals_ == 0) record_->first_token_s = record_->end_s;
  }

 private:
  void OnChoice(const json& choice) {
    const bool finished = !StringAt(choice, "finish_reason").empty();
    finished_ = finished_ || finished;
    const bool has_text =
        !StringAt(choice, "text").empty() ||
        (choice.is_object() && choice.contains("delta") && !StringAt(choice["delta"], "content").empty());
    // A last chunk without text may still be a token (half a character, or the end of the sequence).
    if (!has_text && !(finished && arrivals_ == 0)) return;
    const double now = Since(start_);
    if (arrivals_++ == 0) {
      record_->first_token_s = now;
    } else {
      record_->gaps_s.push_back(static_cast<float>(now - last_s_));
    }
    last_s_ = now;
  }

  RequestRecord* const record_;
  const Clock::time_point start_;
  int32_t arrivals_ = 0;
  double last_s_ = 0;
  bool has_usage_ = false;
  bool finished_ = false;
};

// TCP, or TLS over TCP.
class Connection {
 public:
  using executor_type = tcp::socket::executor_type;

  explicit Connection(asio::io_context* io) : socket_(*io) {}

  executor_type get_executor() { return socket_.get_executor(); }
  tcp::socket& socket() { return socket_; }
  void UseTls(asio::ssl::context* context, const std::string& host) {
    tls_.emplace(socket_, *context);
    tls_->set_verify_callback(asio::ssl::host_name_verification(host));
    error_code not_numeric;
    (void)asio::ip::make_address(host, not_numeric);
    if (not_numeric) SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
  }
  asio::awaitable<error_code> Handshake() {
    error_code error;
    co_await tls_->async_handshake(asio::ssl::stream_base::client,
                                   asio::redirect_error(asio::use_awaitable, error));
    co_return error;
  }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_read_some(buffers, std::forward<Token>(token))
                            : socket_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_write_some(buffers, std::forward<Token>(token))
                            : socket_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
};

class LoadClient {
 public:
  LoadClient(const BenchOptions& options, const std::vector<BenchRequest>& requests)
      : options_(options), requests_(requests), records_(requests.size()) {}

  absl::StatusOr<std::vector<RequestRecord>> Run() {
    RETURN_IF_ERROR(SetTrust());
    error_code error;
    endpoints_ = tcp::resolver(io_).resolve(options_.host, std::to_string(options_.port), error);
    start_ = Clock::now();
    if (options_.concurrency > 0) {
      for (int32_t i = 0; i < options_.concurrency; ++i) asio::co_spawn(io_, ClosedLoop(), asio::detached);
    } else {
      asio::co_spawn(io_, OpenLoop(), asio::detached);
    }
    io_.run();
    return std::move(records_);
  }

 private:
  absl::Status SetTrust() {
    if (!options_.tls) return absl::OkStatus();
    error_code error;
    trust_.set_verify_mode(asio::ssl::verify_peer);
    if (options_.ca_cert.empty()) {
      trust_.set_default_verify_paths(error);
    } else {
      trust_.load_verify_file(options_.ca_cert, error);
    }
    if (!error) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--ca-cert: ", options_.ca_cert, ": ", error.message()));
  }

  asio::awaitable<void> ClosedLoop() {
    while (next_ < requests_.size()) {
      const size_t index = next_++;
      co_await RunOne(index);
    }
  }

  asio::awaitable<void> OpenLoop() {
    asio::steady_timer timer(io_);
    Clock::time_point due = start_;
    for (size_t i = 0; i < requests_.size(); ++i) {
      // From the time that was due, not from now: a late wake-up does not lower the rate.
      due += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(requests_[i].gap_s));
      if (due > Clock::now()) {
        timer.expires_at(due);
        co_await timer.async_wait(asio::use_awaitable);
      }
      asio::co_spawn(io_, RunOne(i), asio::detached);
    }
  }

  asio::awaitable<void> RunOne(size_t index) {
    RequestRecord& record = records_[index];
    record.start_s = Since(start_);
    const auto connection = std::make_shared<Connection>(&io_);
    const auto timed_out = std::make_shared<bool>(false);
    asio::steady_timer deadline(
        io_, std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_s)));
    deadline.async_wait([connection, timed_out](error_code error) {
      if (error) return;
      *timed_out = true;
      connection->socket().close(error);
    });
    co_await Exchange(connection.get(), requests_[index], &record);
    deadline.cancel();
    if (*timed_out) record.error = "timeout";
    record.end_s = Since(start_);
  }

  asio::awaitable<void> Exchange(Connection* connection, const BenchRequest& request, RequestRecord* record) {
    error_code error;
    if (endpoints_.empty()) {
      record->error = "unknown host";
      co_return;
    }
    co_await asio::async_connect(connection->socket(), endpoints_,
                                 asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      record->error = "connect";
      co_return;
    }
    connection->socket().set_option(tcp::no_delay(true), error);
    if (options_.tls) {
      connection->UseTls(&trust_, options_.host);
      if (co_await connection->Handshake()) {
        record->error = "tls";
        co_return;
      }
    }
    const std::string wire = Head(request) + request.body;
    co_await asio::async_write(*connection, asio::buffer(wire),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      record->error = "send";
      co_return;
    }
    co_await ReadAnswer(connection, record);
  }

  asio::awaitable<void> ReadAnswer(Connection* connection, RequestRecord* record) {
    ResponseReader reader;
    SseParser sse;
    AnswerTimer timer(record, start_);
    char buffer[16384];
    while (!reader.done()) {
      error_code error;
      const size_t n = co_await connection->async_read_some(asio::buffer(buffer),
                                                            asio::redirect_error(asio::use_awaitable, error));
      const absl::Status fed = error ? reader.FeedEof() : reader.Feed(absl::string_view(buffer, n));
      if (!fed.ok()) {
        record->error = "cut";
        co_return;
      }
      if (!reader.header_done()) continue;
      const std::string body = reader.TakeBody();
      if (reader.status() != 200) {
        record->error = absl::StrCat("http ", reader.status());
        continue;
      }
      for (const std::string& event : sse.Feed(body)) timer.OnEvent(event);
    }
    timer.Finish();
  }

  std::string Head(const BenchRequest& request) const {
    const std::string authorization =
        options_.api_key.empty() ? "" : absl::StrCat("Authorization: Bearer ", options_.api_key, "\r\n");
    return absl::StrCat(
        "POST ", request.path, " HTTP/1.1\r\nHost: ", JoinHostPort(options_.host, options_.port),
        "\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ", request.body.size(),
        "\r\n", authorization, "\r\n");
  }

  const BenchOptions& options_;
  const std::vector<BenchRequest>& requests_;
  std::vector<RequestRecord> records_;
  asio::io_context io_{1};
  asio::ssl::context trust_{asio::ssl::context::tls_client};
  tcp::resolver::results_type endpoints_;
  Clock::time_point start_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<RequestRecord>> RunLoad(const BenchOptions& options,
                                                   const std::vector<BenchRequest>& requests) {
  return LoadClient(options, requests).Run();
}

}  // namespace somnus::bench
