-- The table, and the statement whose binary COPY is rows.copy: every type that CALIBER stores, its borders, and nothing.
CREATE TABLE golden (
  n INTEGER PRIMARY KEY,
  flag BOOLEAN, tiny SMALLINT, small INTEGER, big BIGINT, single REAL, real DOUBLE PRECISION,
  id UUID, at TIMESTAMPTZ, raw BYTEA, said TEXT, body JSONB, plain JSON, tags TEXT[], ids UUID[],
  meaning vector, short halfvec
);
INSERT INTO golden VALUES
(1, true, 1, 2, 3, 1.5, -2.25, '00112233-4455-6677-8899-aabbccddeeff', '2000-01-01 00:00:00+00', '\x00ff10', 'plain',
 '{"a": [1, 2.50, null, true], "b": "é"}', '{"a":  1}', '{one,two}', '{00112233-4455-6677-8899-aabbccddeeff}',
 '[1,2,3]', '[1,2,3]'),
(2, false, -32768, -2147483648, -9223372036854775808, '-0', 'NaN', '00000000-0000-0000-0000-000000000000',
 '1970-01-01 00:00:00.000001+00', '', '', '{}', '[]', '{}', '{}', '[-0]', '[-0]'),
(3, true, 32767, 2147483647, 9223372036854775807, 'Infinity', '-Infinity', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
 '4713-01-01 00:00:00+00 BC', '\xffffffffffffffffff', 'naïve — 日本 🎉 𝄞', '"𝄞\u00e9"', 'null',
 '{"","a b","\"","\\","日本",NULLED}',
 '{00000000-0000-0000-0000-000000000001,00000000-0000-0000-0000-000000000002}',
 '[3.4028235e38,1.4e-45,0.1]', '[65504,5.96e-8,0.1]'),
(4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
(5, false, 0, 0, 0, 1e-45, 5e-324, '01890a5d-ac96-774b-bcce-b302099a8057', '9999-12-31 23:59:59.999999+00',
 '\x5c', E'a\tb\nc', '[[], {}, [[]]]', '"x"', '{é}', NULL, '[0.5,-0.25]', '[-65504,0.0000610352]'),
(6, NULL, 7, NULL, 8, NULL, 9, NULL, '0001-01-01 00:00:00+00', NULL, 'every other', NULL, '1', NULL,
 '{01890a5d-ac96-774b-bcce-b302099a8057}', NULL, '[1]');
COPY (SELECT * FROM golden ORDER BY n) TO STDOUT (FORMAT binary);
