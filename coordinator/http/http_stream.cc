#include "coordinator/http/http_stream.h"

#include <openssl/ssl.h>

#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "absl/strings/str_cat.h"

namespace somnus {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kFirstBytes = 4096;  // less than an SSL object takes at once
constexpr char kHandshakeRecord = 0x16;

}  // namespace

asio::awaitable<HttpStream::Opening> HttpStream::Open(absl::Duration limit) {
  if (context_ == nullptr) co_return Opening::kOpen;
  ExpiresAfter(limit);
  std::array<char, kFirstBytes> first;
  error_code ec;
  const size_t got =
      co_await tcp_.async_read_some(asio::buffer(first), asio::redirect_error(asio::use_awaitable, ec));
  if (ec) co_return Opening::kClosed;
  if (first[0] != kHandshakeRecord) co_return Opening::kNoTls;
  tls_.emplace(tcp_, *context_);
  co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::buffer(first.data(), got),
                                 asio::redirect_error(asio::use_awaitable, ec));
  if (!ec) co_return Opening::kOpen;
  tls_.reset();
  co_return ec.category() == asio::error::get_ssl_category() ? Opening::kRefused : Opening::kClosed;
}

asio::awaitable<void> HttpStream::EndTls(absl::Duration limit) {
  if (!tls_.has_value() || !socket().is_open()) co_return;
  // As if the client had ended its side: else asio would wait until the client does.
  SSL_set_shutdown(tls_->native_handle(), SSL_RECEIVED_SHUTDOWN);
  ExpiresAfter(limit);
  error_code ignored;
  co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
}

std::string HttpStream::PeerText() {
  boost::system::error_code ec;
  const boost::asio::ip::tcp::endpoint peer = socket().remote_endpoint(ec);
  return ec ? "" : absl::StrCat(peer.address().to_string(), ":", peer.port());
}

}  // namespace somnus
