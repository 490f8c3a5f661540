#pragma once
// The bytes of one HTTP connection: TCP, or TLS over TCP where the listener has a certificate. Reads and
// writes are asio's, so that Beast can use the stream; without TLS they cost a branch more than reads and
// writes of TCP. Runs on the server's I/O thread. Internal to coordinator/http; includes Boost.

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace somnus {

class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // `context` may be null: plain TCP.
  HttpStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> context)
      : tcp_(std::move(socket)), context_(std::move(context)) {}

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  // The address of the client, "127.0.0.1:40112"; empty: the client has gone.
  std::string PeerText();
  // The TCP stream, which lies below TLS if there is TLS.
  boost::beast::tcp_stream& tcp() { return tcp_; }

  // A read or a write that lasts longer ends with beast::error::timeout, and closes the socket.
  void ExpiresAfter(absl::Duration limit) { tcp_.expires_after(absl::ToChronoNanoseconds(limit)); }
  void ExpiresNever() { tcp_.expires_never(); }

  enum class Opening {
    kOpen,     // requests may be read
    kNoTls,    // the client does not speak TLS: from now on the stream is plain TCP, for a refusal
    kRefused,  // the handshake has failed, and the client has been sent the reason
    kClosed,   // the client has left, or took longer than `limit`
  };
  // To be called once, before anything else. Without TLS the stream is open at once.
  boost::asio::awaitable<Opening> Open(absl::Duration limit);

  // Tells the client, where there is TLS, that nothing more comes, and does not wait for the client's reply.
  // Bytes that the client still sends can be read from tcp().
  boost::asio::awaitable<void> EndTls(absl::Duration limit);

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_read_some(buffers, std::forward<Token>(token))
                            : tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_write_some(buffers, std::forward<Token>(token))
                            : tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  boost::beast::tcp_stream tcp_;
  const std::shared_ptr<boost::asio::ssl::context> context_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;  // once the handshake has begun
};

}  // namespace somnus
