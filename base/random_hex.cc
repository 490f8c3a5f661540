#include "base/random_hex.h"

#include <sys/random.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace somnus {

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    const ssize_t n = getrandom(raw.data() + got, bytes - got, 0);
    SOMNUS_CHECK(n > 0 || errno == EINTR);  // Linux's getrandom has no other error for memory of our own
    if (n > 0) got += static_cast<size_t>(n);
  }
  return absl::BytesToHexString(raw);
}

}  // namespace somnus
