#include "tools/http/response_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace http = boost::beast::http;
namespace {
constexpr uint64_t kMaxBodyBytes = uint64_t{1} << 30;

// HTTP/2 servers, gRPC's included, begin with a SETTINGS frame: three bytes of length, type 4, flags 0,
// stream 0.
bool IsHttp2(absl::string_view bytes) {
  return bytes.size() >= 9 && bytes[0] == 0 && bytes.substr(3, 6) == absl::string_view("\4\0\0\0\0\0", 6);
}
}  // namespace

struct ResponseReader::Impl {
  using Parser = http::response_parser<http::string_body>;

  Impl() { Fresh(); }

  void Fresh() {
    parser = std::make_unique<Parser>();
    parser->eager(true);
    parser->body_limit(kMaxBodyBytes);
    started = false;
  }

  std::unique_ptr<Parser> parser;
  std::string pending;  // bytes that the parser needs again, together with later bytes
  bool started = false;
};

ResponseReader::ResponseReader() : impl_(std::make_unique<Impl>()) {}
ResponseReader::~ResponseReader() = default;
ResponseReader::ResponseReader(ResponseReader&&) noexcept = default;
ResponseReader& ResponseReader::operator=(ResponseReader&&) noexcept = default;

void ResponseReader::Reset() { impl_->Fresh(); }

absl::Status ResponseReader::Feed(absl::string_view bytes) {
  std::string& pending = impl_->pending;
  pending.append(bytes.data(), bytes.size());
  if (!impl_->started && IsHttp2(pending)) return absl::UnimplementedError("the answer is HTTP/2");
  size_t used = 0;
  while (used < pending.size() && !impl_->parser->is_done()) {
    boost::beast::error_code error;
    const size_t n =
        impl_->parser->put(boost::asio::buffer(pending.data() + used, pending.size() - used), error);
    used += n;
    impl_->started = true;
    if (error == http::error::need_more) break;
    if (error) return absl::DataLossError(absl::StrCat("the answer is not HTTP: ", error.message()));
    if (n == 0) break;
  }
  pending.erase(0, used);
  return absl::OkStatus();
}

absl::Status ResponseReader::FeedEof() {
  if (impl_->parser->is_done()) return absl::OkStatus();
  boost::beast::error_code error;
  if (impl_->started) impl_->parser->put_eof(error);
  if (error || !impl_->parser->is_done()) {
    return absl::DataLossError("the server closed the connection in the middle of its answer");
  }
  return absl::OkStatus();
}

bool ResponseReader::header_done() const { return impl_->parser->is_header_done(); }
bool ResponseReader::done() const { return impl_->parser->is_done(); }
int ResponseReader::status() const { return impl_->parser->get().result_int(); }
bool ResponseReader::keep_alive() const { return impl_->parser->keep_alive(); }

std::string ResponseReader::header(absl::string_view name) const {
  const auto& message = impl_->parser->get();
  const auto found = message.find(boost::beast::string_view(name.data(), name.size()));
  return found == message.end() ? std::string() : std::string(found->value());
}

std::string ResponseReader::TakeBody() { return std::exchange(impl_->parser->get().body(), {}); }

}  // namespace somnus
