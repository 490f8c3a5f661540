"""Python stubs of the services, generated from proto/ as a client author would do it."""
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import ROOT


def generate(*names):
    """Makes proto.NAME_pb2 and proto.NAME_pb2_grpc importable for the running module. SkipTest without grpcio-tools."""
    try:
        import grpc_health, grpc_reflection, grpc_tools  # noqa: E401,F401 pylint: disable=multiple-imports,unused-import
    except ImportError as error:
        raise unittest.SkipTest("grpcio-tools is not installed: tools/setup.sh tests") from error
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT, f"--python_out={folder.name}",
                    f"--grpc_python_out={folder.name}", *(f"proto/{name}.proto" for name in names)],
                   check=True, stdin=subprocess.DEVNULL)
    sys.path.insert(0, folder.name)
    unittest.addModuleCleanup(sys.path.remove, folder.name)
