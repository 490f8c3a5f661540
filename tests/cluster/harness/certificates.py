"""Certificates for tests, made by the openssl command."""
import os
import subprocess


class Certificates:
    """Files in a folder: authority.pem; NAME.pem and NAME.key of it, for localhost and 127.0.0.1."""

    def __init__(self, folder, authority="authority"):
        self.folder, self.authority = folder, authority
        self._run("req", "-x509", *self._new_key(authority), "-days", "2", "-out", self.path(f"{authority}.pem"))
        self.ca = self.path(f"{authority}.pem")

    def path(self, name):
        return os.path.join(self.folder, name)

    def make(self, name):
        """(certificate, key)"""
        with open(self.path("names"), "w", encoding="ascii") as file:
            file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run("req", *self._new_key(name), "-out", self.path(f"{name}.csr"))
        self._run("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.ca, "-CAkey", self.path(f"{self.authority}.key"),
                  "-days", "2", "-extfile", self.path("names"), "-out", self.path(f"{name}.pem"))
        return self.path(f"{name}.pem"), self.path(f"{name}.key")

    def _new_key(self, name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", self.path(f"{name}.key"))

    @staticmethod
    def _run(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, stdin=subprocess.DEVNULL)
