#include "base/tls_files.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/free_by.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

using BytesPtr = std::unique_ptr<BIO, FreeBy<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, FreeBy<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

absl::Status BadFlag(const char* flag, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", problem));
}

absl::StatusOr<std::string> Read(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  return text.ok() ? text : BadFlag(flag, text.status().message());
}

// The text outlives the result.
BytesPtr BytesOf(const std::string& text) {
  return BytesPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<CertificatePtr> ReadCertificate(const char* flag, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, Read(flag, path));
  CertificatePtr certificate(PEM_read_bio_X509(BytesOf(text).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return BadFlag(flag, absl::StrCat(path, " is not a certificate in PEM"));
  return certificate;
}

// A key with a passphrase counts as none: there is nobody to ask.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<KeyPtr> ReadKey(const char* flag, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, Read(flag, path));
  KeyPtr key(PEM_read_bio_PrivateKey(BytesOf(text).get(), nullptr, NoPassphrase, nullptr));
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
