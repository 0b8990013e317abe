"""The layers of the configuration, where each value came from, and the one line of each error."""

import os
from pathlib import Path

import pytest

from cardcage.config import ENVIRONMENT, Config, SecurityConfig, ServerConfig, default_places, is_loopback, load_config
from cardcage.config.values import SchedulingConfig
from cardcage_sdk.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return file


FILE = '[server]\nport = 1111\nlog_level = "debug"\nhost = "127.0.0.3"\n[paths]\nstore = "here/models"\n'


@pytest.mark.parametrize(
    ("environ", "overrides", "port", "source"),
    [
        ({}, {}, 1111, "FILE"),
        ({"CARDCAGE_PORT": "2222"}, {}, 2222, "environment CARDCAGE_PORT"),
        ({"CARDCAGE_PORT": ""}, {}, 1111, "FILE"),
        ({"CARDCAGE_PORT": "2222"}, {"server.port": 3333}, 3333, "command line"),
        ({}, {"server.port": 3333}, 3333, "command line"),
        ({"CARDCAGE_PORT": "2222"}, {"server.port": None}, 2222, "environment CARDCAGE_PORT"),
    ],
)
def test_the_stronger_layer_wins_and_is_named(tmp_path, environ, overrides, port, source):
    file = write(tmp_path, FILE)
    config = load_config(file=file, environ=environ, overrides=overrides)
    assert config.server.port == port
    assert config.sources["server.port"] == (str(file) if source == "FILE" else source)
    # Neighbours in the same table keep their own layer.
    assert config.server.log_level == "debug"
    assert config.sources["server.log_level"] == str(file)
    assert config.sources["server.request_queue_size"] == "built-in"


def test_every_value_has_a_source(tmp_path):
    config = load_config(file=write(tmp_path, ""), environ={})
    for table, value in (
        ("server", config.server),
        ("scheduling", config.scheduling),
        ("plugins", config.plugins),
        ("security", config.security),
    ):
        for key in type(value).model_fields:
            assert config.sources[f"{table}.{key}"] == "built-in"


def test_every_variable_sets_its_key(tmp_path):
    values = {
        "CARDCAGE_HOST": "127.0.0.9",
        "CARDCAGE_PORT": "4000",
        "CARDCAGE_LOG_LEVEL": "trace",
        "CARDCAGE_LOG_FORMAT": "json",
        "CARDCAGE_SHUTDOWN_SECONDS": "2.5",
        "CARDCAGE_STORE": str(tmp_path / "s"),
        "CARDCAGE_DATA_DIR": str(tmp_path / "d"),
    }
    assert set(values) == set(ENVIRONMENT)
    config = load_config(file=write(tmp_path, ""), environ=values)
    assert (config.server.host, config.server.port) == ("127.0.0.9", 4000)
    assert (config.server.log_level, config.server.log_format) == ("trace", "json")
    assert config.server.shutdown_seconds == 2.5
    assert (config.store, config.data_dir) == (tmp_path / "s", tmp_path / "d")
    for variable, key in ENVIRONMENT.items():
        assert config.sources[key] == f"environment {variable}"


def test_the_store_lies_below_the_data_directory_unless_named(tmp_path):
    config = load_config(file=write(tmp_path, ""), environ={"CARDCAGE_DATA_DIR": str(tmp_path / "d")})
    assert config.store == tmp_path / "d" / "models"


def test_relative_paths_are_those_of_the_file_that_names_them(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = FILE + '[plugins]\nfiles = ["./a.py"]\n[security]\nallowed_roots = ["roots"]\n'
    text += '[[models]]\nmodel_id = "m"\nmodel_path = "m/dir"\n'
    config = load_config(file=write(tmp_path, text), environ={}, overrides={"plugins.files": [Path("b.py")]})
    assert config.store == tmp_path / "here/models"
    assert config.plugins.files == (tmp_path / "a.py", elsewhere / "b.py")
    assert config.security.allowed_roots == (tmp_path / "roots",)
    assert config.models[0].model_path == str(tmp_path / "m/dir")
    moved = load_config(file=tmp_path / "config.toml", environ={"CARDCAGE_STORE": "mine"})
    assert moved.store == elsewhere / "mine"


def test_llamapis_tables_are_read(tmp_path):
    text = """
        [defaults]
        temperature = 0.5
        stop = "END"
        max_context_len = 2048
        enable_thinking = false
        [[models]]
        model_id = "first"
        model_path = "/m/first"
        instance_count = 2
        request_queue_size = 3
        [models.default_params]
        temperature = 1
        stop = ["a", "b"]
        [[models]]
        model_id = "qwen3:4b@rkllm-rk3588"
        model_path = "/m/second"
    """
    config = load_config(file=write(tmp_path, text), environ={})
    assert config.defaults.sampling.temperature == 0.5
    assert config.defaults.sampling.stop == ("END",)
    assert config.defaults.max_context_len == 2048
    assert config.defaults.enable_thinking is False
    first, second = config.models
    assert (first.model_id, first.instance_count, first.request_queue_size) == ("first", 2, 3)
    assert first.defaults.sampling.temperature == 1.0
    assert first.defaults.sampling.stop == ("a", "b")
    assert first.defaults.sampling.top_p is None
    assert (second.model_id, second.instance_count, second.request_queue_size) == ("qwen3:4b@rkllm-rk3588", 1, None)


def test_platform_and_dialect_tables_pass_through(tmp_path):
    text = "[platforms.some]\nthreads = 2\nnested = {a = [1, 2]}\n[dialects.other]\nprofile = 'x'\n"
    config = load_config(file=write(tmp_path, text), environ={})
    assert config.platform_options == {"some": {"threads": 2, "nested": {"a": [1, 2]}}}
    assert config.dialect_settings == {"other": {"profile": "x"}}
    assert config.sources["platforms.some.threads"] == str(tmp_path / "config.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nport = 'x'", ["[server]", "port", "integer", "'x'"]),
        ("[server]\nport = 70000", ["[server]", "port", "65535"]),
        ("[server]\nport = true", ["[server]", "port"]),
        ("[server]\nprot = 1", ["[server]", "'prot'", "did you mean 'port'"]),
        ("[server]\nlog_level = 'loud'", ["log_level", "'trace'", "'loud'"]),
        ("[server]\nqueue_timeout_seconds = inf", ["queue_timeout_seconds"]),
        ("[sever]\nport = 1", ["unknown table [sever]", "did you mean [server]"]),
        ("port = 1", ["unknown key 'port'"]),
        ("server = 1", ["'server' must be a table"]),
        ("[defaults]\ntemperature = -1", ["[defaults]", "temperature"]),
        ("[defaults]\ntemperatur = 1", ["[defaults]", "did you mean 'temperature'"]),
        ("[defaults]\nstop = ['']", ["[defaults]", "stop"]),
        ("[[models]]\nmodel_id = 'a'", ["[[models]] entry 1", "'model_path' is missing"]),
        ("[[models]]\nmodel_id = 'a b'\nmodel_path = '/m'", ["entry 1", "model_id", "white space"]),
        ("[[models]]\nmodel_id = 'a/b'\nmodel_path = '/m'", ["entry 1", "model_id", "'/'"]),
        ("[[models]]\nmodel_id = '" + "x" * 21 + "'\nmodel_path = '/m'", ["entry 1", "21 columns"]),
        ("[[models]]\nmodel_id = '" + "模" * 11 + "'\nmodel_path = '/m'", ["entry 1", "22 columns"]),
        ("[[models]]\nmodel_id='a'\nmodel_path='/m'\n" * 2, ["entry 2", "used twice"]),
        ("[[models]]\nmodel_id='a'\nmodel_path='/m'\ninstance_count=0", ["entry 1", "instance_count"]),
        ("[[models]]\nmodel_id='a'\nmodel_path='/m'\n[models.default_params]\ntop_q=1", ["default_params", "top_q"]),
        ("models = 3", ["[[models]]"]),
        ("[platforms]\nsome = 1", ["[platforms]", "[platforms.some]"]),
        ("[platforms.some]\nwhen = 2020-01-01", ["[platforms.some]", "when"]),
        ("[plugins]\nrequired = 'x'", ["[plugins]", "required"]),
        ("[plugins]\nfiles = 'x.py'", ["[plugins]", "files: input should be an array (got 'x.py')"]),
        ("[security]\nallowed_roots = [1]", ["[security]", "allowed_roots.0: input should be a path (got 1)"]),
        ("[security]\nallowed_roots = ['']", ["[security]", "allowed_roots.0", "must not be empty"]),
        ("[security]\nallowed_origins = ['chat.example']", ["allowed_origins.0", "https://chat.example"]),
        ("[security]\nallowed_origins = ['*.chat.example']", ["allowed_origins.0"]),
        ("[security]\nallowed_origins = ['https://a.example/page']", ["allowed_origins.0"]),
        ("[security]\nallowed_hosts = ['http://a.example']", ["allowed_hosts.0", "without scheme and port"]),
        ("[security]\nallowed_hosts = ['a.example:80']", ["allowed_hosts.0"]),
        ("[security]\nallowed_hosts = ['*']", ["allowed_hosts.0"]),
        ("[[listen]]\norigins = ['x']", ["[[listen]] entry 1", "origins.0"]),
        ("[paths]\nstore = ''", ["[paths]", "store: a path must not be empty"]),
        ("[server\n", ["line 1"]),
    ],
)
def test_an_error_is_one_line_with_file_table_and_key(tmp_path, text, words):
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, environ={})
    message = caught.value.message
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_every_form_of_origin_and_host_that_is_matched_may_be_written(tmp_path):
    origins = [
        "*",
        "null",
        "https://chat.example",
        "https://chat.example:8443/",
        "https://*.chat.example",
        "vscode-webview://*",
    ]
    hosts = ["board.local", "10.0.0.3", "::1", "[fd00::1]"]
    config = load_config(
        file=write(tmp_path, f"[security]\nallowed_origins = {origins}\nallowed_hosts = {hosts}\n"), environ={}
    )
    assert config.security.allowed_origins == tuple(origins)
    assert config.security.allowed_hosts == tuple(hosts)


def test_a_wrong_variable_or_option_is_named(tmp_path):
    file = write(tmp_path, "")
    with pytest.raises(ConfigError, match=r"^CARDCAGE_PORT: port: "):
        load_config(file=file, environ={"CARDCAGE_PORT": "many"})
    with pytest.raises(ConfigError, match=r"^--log-level: "):
        load_config(file=file, environ={}, overrides={"server.log_level": "loud"})


def test_a_named_file_must_exist_and_be_text(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(file=tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load_config(environ={"CARDCAGE_CONFIG": str(tmp_path / "none.toml")})
    (tmp_path / "binary.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(file=tmp_path / "binary.toml", environ={})
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf[server]\n")
    with pytest.raises(ConfigError, match="byte order mark"):
        load_config(file=tmp_path / "marked.toml", environ={})


@pytest.mark.skipif(os.geteuid() != 0, reason="the rule is about root")
def test_root_on_a_machine_set_up_for_the_service_gets_its_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdgc"))
    etc, var = tmp_path / "etc/config.toml", tmp_path / "var"
    user = default_places(service_config=etc, service_data=var)
    assert user.data_dir == tmp_path / "xdg/cardcage"
    assert user.config_file == tmp_path / "xdgc/cardcage/config.toml"
    var.mkdir()
    service = default_places(service_config=etc, service_data=var)
    assert (service.config_file, service.data_dir) == (etc, var)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("x.localhost", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected


def test_which_files_a_request_may_name(tmp_path):
    store, root, other = tmp_path / "store", tmp_path / "root", tmp_path / "other"
    for directory in (store, root, other):
        directory.mkdir()
    (root / "link").symlink_to(other)

    def config(host: str, *roots: Path) -> Config:
        return Config(
            store=store,
            data_dir=tmp_path,
            server=ServerConfig(host=host),
            security=SecurityConfig(allowed_roots=roots),
            scheduling=SchedulingConfig(),
        )

    assert config("127.0.0.1").allows_path(other / "m")
    wide = config("0.0.0.0")
    assert wide.allows_path(store / "m")
    assert not wide.allows_path(other / "m")
    assert not wide.allows_path(store / ".." / "other")
    for host in ("127.0.0.1", "0.0.0.0"):
        rooted = config(host, root)
        assert rooted.allows_path(store / "m")
        assert rooted.allows_path(root / "m")
        assert not rooted.allows_path(other / "m")
        assert not rooted.allows_path(root / "link" / "m")


def test_the_example_file_says_the_built_in_values(tmp_path):
    example = Path(__file__).parents[3] / "examples/config.toml"
    config = load_config(file=example, environ={"CARDCAGE_DATA_DIR": str(tmp_path)})
    assert config.server == ServerConfig()
    assert config.scheduling == SchedulingConfig()
