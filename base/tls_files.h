#pragma once
// The files by which a process identifies itself over TLS. Values; thread safe.

#include <string>

#include "absl/status/status.h"

namespace somnus {

// PEM files: a certificate (with intermediate certificates), its private key, and the authorities that may
// have signed the other side's certificate. Empty: none.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// The flags that name the files, for errors.
struct TlsFlagNames {
  const char* certificate;
  const char* key;
  const char* authority;
};

// InvalidArgument names the flag at fault: the file cannot be read or holds no PEM of the right kind, a
// second flag requires the missing flag, or the key belongs to a different certificate. Without an authority
// no check of an authority is made.
absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFlagNames& names);

}  // namespace somnus
