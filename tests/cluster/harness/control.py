"""ControlService.GetStatus without a process for each call: `somnus status` takes longer to start than the call itself takes."""
import functools
import os
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
TIMEOUT_S = 60
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


@functools.lru_cache(maxsize=None)
def messages():
    """(request, reply) as classes, from the .proto file; None where Python has no gRPC, or where protoc is not installed."""
    try:
        import grpc  # noqa: F401 pylint: disable=unused-import
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        with tempfile.NamedTemporaryFile() as made:
            subprocess.run(["protoc", "-I", ROOT, "--include_imports", f"--descriptor_set_out={made.name}",
                            os.path.join(ROOT, "proto", "control.proto")], check=True, stdin=subprocess.DEVNULL)
            files = descriptor_pb2.FileDescriptorSet.FromString(made.read()).file
    except (ImportError, FileNotFoundError):
        return None
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(f"somnus.v1.GetStatus{kind}"))
                 for kind in ("Request", "Response"))


def get_status(port, model):
    """The status as printed by `somnus status --json`; AssertionError where nobody answers."""
    import grpc
    from google.protobuf import json_format
    request, response = messages()
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        call = channel.unary_unary("/somnus.v1.ControlService/GetStatus", request.SerializeToString, response.FromString)
        try:
            reply = call(request(model=model), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise AssertionError(f"GetStatus: {error.code()}: {error.details()}") from error
    found = json_format.MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for one in (found, *found["replicas"]):
        one["epoch"] = int(one.pop("group_epoch"))
    for replica in found["replicas"]:
        replica.update((name, int(replica[name])) for name in ("num_requests", "num_recoveries"))
    return found
