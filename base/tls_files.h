#pragma once
// The files by which a process shows who it is over TLS. Values; thread safe.

#include <string>

#include "absl/status/status.h"

namespace somnus {

// PEM files: a certificate (with what its authority needs between), its private key, and the authorities
// whose certificates the other side may have. Empty: none.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// The flags that name them, for errors.
struct TlsFlagNames {
  const char* certificate;
  const char* key;
  const char* authority;
};

// InvalidArgument names the flag whose file cannot be read or holds no PEM of its kind, that is missing
// beside another one, or whose key belongs to another certificate. Without an authority nothing is required
// of one.
absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFlagNames& names);

}  // namespace somnus
