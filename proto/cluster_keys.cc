#include "proto/cluster_keys.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/free_by.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, FreeBy<X509_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, FreeBy<X509_EXTENSION_free>>;
using BioPtr = std::unique_ptr<BIO, FreeBy<BIO_free>>;

constexpr char kAuthorityName[] = "somnus cluster";
constexpr char kMemberName[] = "somnus cluster member";
constexpr size_t kKeyBytes = 32;

absl::Status Failed(absl::string_view what) { return absl::InternalError(absl::StrCat("openssl: ", what)); }

// 32 bytes that follow from the secret and the purpose alone, and that tell nothing about either.
std::string Derive(absl::string_view secret, absl::string_view purpose) {
  std::string bytes(kKeyBytes, '\0');
  unsigned int size = 0;
  SOMNUS_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                    reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
                    reinterpret_cast<unsigned char*>(bytes.data()), &size) != nullptr &&
               size == kKeyBytes);
  return bytes;
}

absl::Status AddExtension(X509* certificate, int nid, const std::string& value) {
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1)
    return Failed("X509_add_ext");
  return absl::OkStatus();
}

absl::Status SetName(X509_NAME* name, const char* text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text);
  if (X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, bytes, -1, -1, 0) == 1) return absl::OkStatus();
  return Failed("X509_NAME_add_entry_by_txt");
}

// The times are as far apart as the format allows: a cluster ends when its secret is changed.
absl::StatusOr<CertificatePtr> MakeCertificate(const char* name, const char* authority_name, EVP_PKEY* key,
                                               EVP_PKEY* authority_key, const std::string& dns_name = "") {
  CertificatePtr certificate(X509_new());
  if (certificate == nullptr) return Failed("X509_new");
  const bool is_authority = key == authority_key;
  unsigned char serial[4];
  if (RAND_bytes(serial, sizeof(serial)) != 1) return Failed("RAND_bytes");
  const long number = 1 + ((serial[0] & 0x7f) << 24 | serial[1] << 16 | serial[2] << 8 | serial[3]);
  if (X509_set_version(certificate.get(), 2) != 1 ||
      ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), number) != 1 ||
      ASN1_TIME_set_string(X509_getm_notBefore(certificate.get()), "20000101000000Z") != 1 ||
      ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), "99991231235959Z") != 1 ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return Failed("cannot make a certificate");
  }
  RETURN_IF_ERROR(SetName(X509_get_subject_name(certificate.get()), name));
  RETURN_IF_ERROR(SetName(X509_get_issuer_name(certificate.get()), authority_name));
  RETURN_IF_ERROR(AddExtension(certificate.get(), NID_basic_constraints,
                               is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE"));
  if (!dns_name.empty())
    RETURN_IF_ERROR(AddExtension(certificate.get(), NID_subject_alt_name, absl::StrCat("DNS:", dns_name)));
  // Ed25519 has a digest of its own.
  const EVP_MD* digest = EVP_PKEY_get_base_id(authority_key) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
  if (X509_sign(certificate.get(), authority_key, digest) == 0) return Failed("X509_sign");
  return certificate;
}

// `write` is an OpenSSL function that writes PEM.
template <typename Write>
absl::StatusOr<std::string> Pem(const Write& write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return Failed("cannot write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

absl::StatusOr<TlsIdentity> ToPem(X509* certificate, EVP_PKEY* key, X509* authority) {
  TlsIdentity identity;
  ASSIGN_OR_RETURN(identity.authority, Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, authority); }));
  ASSIGN_OR_RETURN(identity.certificate, Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }));
  ASSIGN_OR_RETURN(identity.key, Pem([&](BIO* bio) {
                     return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
                   }));
  return identity;
}

}  // namespace

absl::StatusOr<TlsIdentity> IdentityFromSecret(absl::string_view secret) {
  const std::string seed = Derive(secret, "somnus cluster authority 1");
  const KeyPtr authority_key(EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
  const KeyPtr key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  if (authority_key == nullptr || key == nullptr) return Failed("cannot make a key");
  ASSIGN_OR_RETURN(const CertificatePtr authority,
                   MakeCertificate(kAuthorityName, kAuthorityName, authority_key.get(), authority_key.get()));
  ASSIGN_OR_RETURN(const CertificatePtr certificate,
                   MakeCertificate(kMemberName, kAuthorityName, key.get(), authority_key.get()));
  return ToPem(certificate.get(), key.get(), authority.get());
}

absl::StatusOr<TlsIdentity> SelfSignedIdentity(const std::string& name) {
  const KeyPtr key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  if (key == nullptr) return Failed("cannot make a key");
  ASSIGN_OR_RETURN(const CertificatePtr certificate,
                   MakeCertificate(name.c_str(), name.c_str(), key.get(), key.get(), name));
  return ToPem(certificate.get(), key.get(), certificate.get());
}

std::string CallToken(absl::string_view secret) {
  return absl::BytesToHexString(Derive(secret, "somnus cluster call 1"));
}

}  // namespace somnus
