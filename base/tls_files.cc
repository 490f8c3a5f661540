#include "base/tls_files.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};
struct FreeObject {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using FilePtr = std::unique_ptr<FILE, CloseFile>;
using CertificatePtr = std::unique_ptr<X509, FreeObject>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeObject>;

absl::Status BadFlag(const char* flag, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", problem));
}

absl::StatusOr<FilePtr> Open(const char* flag, const std::string& path) {
  FilePtr file(fopen(path.c_str(), "re"));
  if (file == nullptr) return BadFlag(flag, absl::StrCat(path, " cannot be read"));
  return file;
}

absl::StatusOr<CertificatePtr> ReadCertificate(const char* flag, const std::string& path) {
  ASSIGN_OR_RETURN(const FilePtr file, Open(flag, path));
  CertificatePtr certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return BadFlag(flag, absl::StrCat(path, " is not a certificate in PEM"));
  return certificate;
}

// A key with a passphrase counts as none: there is nobody to ask.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<KeyPtr> ReadKey(const char* flag, const std::string& path) {
  ASSIGN_OR_RETURN(const FilePtr file, Open(flag, path));
  KeyPtr key(PEM_read_PrivateKey(file.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr)
    return BadFlag(flag, absl::StrCat(path, " is not a private key in PEM, without passphrase"));
  return key;
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFlagNames& names) {
  if (files.certificate.empty() && files.key.empty() && files.authority.empty()) return absl::OkStatus();
  if (files.certificate.empty()) return BadFlag(names.certificate, "is needed beside the other two");
  if (files.key.empty()) return BadFlag(names.key, absl::StrCat("is needed beside ", names.certificate));
  ASSIGN_OR_RETURN(const CertificatePtr certificate, ReadCertificate(names.certificate, files.certificate));
  ASSIGN_OR_RETURN(const KeyPtr key, ReadKey(names.key, files.key));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return BadFlag(names.key, absl::StrCat(files.key, " is not the key of ", files.certificate));
  }
  if (files.authority.empty()) return absl::OkStatus();
  return ReadCertificate(names.authority, files.authority).status();
}

}  // namespace somnus
