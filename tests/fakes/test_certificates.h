#pragma once
// Certificates for tests, made by the openssl command in a folder of their own, which the destructor removes.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/tls_files.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {

class TestCertificates {
 public:
  std::string Path(const std::string& file) const { return absl::StrCat(directory_.path(), "/", file); }

  // Makes NAME.pem and NAME.key, an authority.
  void MakeAuthority(const std::string& name) {
    Run(absl::StrCat(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 10 -subj /CN=", name,
        " -keyout ", Path(name), ".key -out ", Path(name), ".pem"));
  }
  // Makes NAME.pem and NAME.key, signed by `authority`, and returns the three files' paths. A negative number
  // of days makes an expired certificate.
  TlsFiles Make(const std::string& name, const std::string& authority, int days = 10) {
    Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=", name,
                     " -keyout ", Path(name), ".key -out ", Path(name), ".csr"));
    const std::string names = Path(name + ".names");
    Run(absl::StrCat("echo subjectAltName=DNS:localhost,IP:127.0.0.1 > ", names));
    Run(absl::StrCat("openssl x509 -req -in ", Path(name), ".csr -CA ", Path(authority), ".pem -CAkey ",
                     Path(authority), ".key -days ", days, " -extfile ", names, " -out ", Path(name),
                     ".pem"));
    return {Path(name + ".pem"), Path(name + ".key"), Path(authority + ".pem")};
  }
  // Puts copies of `from` in the place of `to`, each at once.
  static void Replace(const TlsFiles& from, const TlsFiles& to) {
    ReplaceFile(from.authority, to.authority);
    ReplaceFile(from.key, to.key);
    ReplaceFile(from.certificate, to.certificate);
  }

 private:
  static void Run(const std::string& command) {
    ASSERT_EQ(system((command + " 2>/dev/null").c_str()), 0) << command;
  }
  static void ReplaceFile(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to + ".new");
    std::filesystem::rename(to + ".new", to);
  }

  const TempDir directory_;
};

}  // namespace somnus
