#include "worker/comm/tcp_notices.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

static_assert(sizeof(TcpNotice) == 256);

TcpNotice NoticeOf(const absl::Status& status) {
  TcpNotice notice;
  notice.code = static_cast<uint32_t>(status.code());
  notice.size = static_cast<uint32_t>(std::min(status.message().size(), sizeof(notice.text)));
  memcpy(notice.text, status.message().data(), notice.size);
  return notice;
}

absl::Status StatusOf(const TcpNotice& notice) {
  const std::string text(notice.text, std::min<size_t>(notice.size, sizeof(notice.text)));
  // With an unknown code, which no rank sends, the text is all that is left to say.
  const bool known =
      notice.code > 0 && notice.code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(notice.code) : absl::StatusCode::kInternal, text);
}

}  // namespace

TcpNotices::TcpNotices(std::vector<UniqueFd> connections, UniqueFd wake, std::vector<std::string> names)
    : wake_(std::move(wake)), names_(std::move(names)), connections_(connections.size()) {
  for (size_t r = 0; r < connections.size(); ++r) connections_[r].fd = std::move(connections[r]);
}

absl::Status TcpNotices::Fail(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (failure_.ok()) Tell(status);
  Record(status);
  return failure_;
}

absl::Status TcpNotices::failure() {
  const std::lock_guard<std::mutex> lock(mu_);
  return failure_;
}

absl::Status TcpNotices::Read() {
  const std::lock_guard<std::mutex> lock(mu_);
  for (size_t r = 0; failure_.ok() && r < connections_.size(); ++r) ReadRank(static_cast<int>(r));
  return failure_;
}

absl::Status TcpNotices::Health() {
  if (absl::Status status = Read(); !status.ok()) return status;
  const std::lock_guard<std::mutex> lock(mu_);
  for (size_t r = 0; r < connections_.size(); ++r) {
    if (connections_[r].closed) {
      return absl::UnavailableError(absl::StrCat(names_[r], " died or left the group"));
    }
  }
  return absl::OkStatus();
}

void TcpNotices::Watch(std::vector<pollfd>* fds) {
  const std::lock_guard<std::mutex> lock(mu_);
  fds->push_back({wake_.get(), POLLIN, 0});
  for (const Connection& connection : connections_) {
    if (connection.fd.get() >= 0 && !connection.closed) fds->push_back({connection.fd.get(), POLLIN, 0});
  }
}

void TcpNotices::ReadRank(int rank) {
  Connection& connection = connections_[rank];
  while (connection.fd.get() >= 0 && !connection.closed) {
    char* const notice = reinterpret_cast<char*>(&connection.notice);
    const ssize_t got = recv(connection.fd.get(), notice + connection.have,
                             sizeof(connection.notice) - connection.have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0 && errno != ECONNRESET) {
      const absl::Status lost = absl::UnavailableError(
          absl::StrCat(names_[rank], " cannot be reached any longer: ", strerror(errno)));
      connection.closed = true;
      Tell(lost);
      return Record(lost);
    }
    connection.closed = got <= 0;
    if (got > 0) connection.have += static_cast<size_t>(got);
    if (connection.have == sizeof(connection.notice)) return Record(StatusOf(connection.notice));
  }
}

void TcpNotices::Tell(const absl::Status& status) {
  const TcpNotice notice = NoticeOf(status);
  for (const Connection& connection : connections_) {
    // A notice fits into a connection's buffer. A rank that cannot be told sees this rank leave.
    if (connection.fd.get() >= 0 && !connection.closed)
      send(connection.fd.get(), &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void TcpNotices::Record(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  const uint64_t one = 1;
  // An eventfd takes a number of 8 bytes, which is never read, so that every later poll ends at once.
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

}  // namespace somnus
