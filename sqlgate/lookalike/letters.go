package lookalike

// letters are letters and digits of other alphabets, and small capitals, that most
// fonts draw as the ASCII one that each row begins with: what Unicode Technical Standard
// 39 lists of them, some that are near enough, and none that NFKC makes ASCII. Those
// that are written from right to left stand by their numbers.
var letters = func() map[rune]rune {
	m := map[rune]rune{}
	for _, row := range [...]string{
		"2ꝚƧϨꙄᒿꛯ",
		"3ꞫȜƷꝪⳌЗӠ𖼻𑣊з",
		"4Ꮞ𑢯",
		"5Ƽ𑢻",
		"6ⳒбᏮ𑣕",
		"7𐓒𑣆",
		"8৪੪\U0001e8cbȣȢ𐌚",
		"9੧୨৭൭ꝮⳊ𑣌𑢬𑣖",
		"AΑАᎪᗅꓮ𖽀𐊠",
		"BꞴΒВᏴᗷꓐ𐊂𐊡𐌁",
		"C𑣲𑣩ⲤСᏟꓚ𐊢𐌂𐐕𐔜",
		"DᎠᗞᗪꓓ",
		"EΕЕⴹᎬꓰ𑢦𑢮𐊆",
		"FꞘϜᖴꓝ𑣂𑢢𐊇𐊥𐔥",
		"GԌᏀᏳꓖ",
		"HΗⲎНᎻᕼꓧ𐋏",
		"JꞲͿЈᎫᒍꓙ",
		"KΚⲔКᏦᛕꓗ𐔘",
		"LⳐᏞᒪꓡ𖼖𑢣𑢲𐐛𐔦",
		"MΜϺⲘМᎷᗰᛖꓟ𐊰𐌑",
		"NΝⲚꓠ𐔓",
		"OᎤᎮ\u07c0০୦〇𑓐𑣠ΟⲞОՕⵔዐଠ𐓂ꓳ𑢵𐊒𐊫𐐄𐔖",
		"PΡⲢРᏢᑭꓑ𐊕",
		"Qⵕ",
		"RƦᎡᏒ𐒴ᖇꓣ𖼵",
		"SЅՏᏕᏚꓢ𖼺𐊖𐐠",
		"TΤⲦТᎢꓔ𖼊𑢼𐊗𐊱𐌕",
		"UՍሀ𐓎ᑌꓴ𖽂𑢸",
		"V\u0667۷ѴⴸᏙᐯꛟꓦ𖼈𑢠𐔝",
		"W𑣯𑣦ԜᎳᏔꓪ",
		"X𐌢𑣬ꞳΧⲬХⵝᚷꓫ𐊐𐊴𐌗𐔧",
		"YΥⲨУҮᎩᎽꓬ𖽃𑢤𐊲",
		"Z𐋵𑣥ΖᏃꓜ𑢩",
		"aɑαаᴀ",
		"bƄᏏᑲᖯьʙ",
		"cᴄⲥс𐐽",
		"dԁᏧᑯꓒᴅ",
		"eꬲеҽᴇ",
		"fꬵꞙẝքꜰ",
		"gɡᶃƍցɢ",
		"hһհᏂнʜ",
		"iıɪɩιіꙇӏᎥ𑣃",
		"jϳјᴊ",
		"kкᴋ",
		"l\u0661۱𐌠\U0001e8c7ƖǀΙⲒІӀ\u05d5\u05df\u0627\u07caⵏᛁꓲ𖼨𐊊𐌉ʟ",
		"mмᴍ",
		"nոռпɴ",
		"o०੦૦௦౦೦൦๐໐၀\u0665۵ᴏᴑꬽοσⲟоჿօ\u05e1\u0647\u06be\u06c1\u06d5ഠဝ𐓪𑣈𑣗𐐬",
		"pρⲣрᴘ",
		"qԛգզ",
		"rꭇꭈᴦⲅгʀ",
		"sꜱƽѕ𑣁𐑈",
		"tтᴛ",
		"uꞟᴜꭎꭒʋυս𐓶𑣘",
		"vᴠνѵ\u05d8𑜆𑣀",
		"wɯᴡѡԝա𑜊𑜎𑜏",
		"xхᕁᕽ",
		"yɣᶌʏỿꭚγуүყ𑣜",
		"zᴢ𑣄",
	} {
		for _, r := range row[1:] {
			m[r] = rune(row[0])
		}
	}
	return m
}()
